// The official JavaScript SDKs of OpenAI and Anthropic, unmodified, against a running gateway. Called by tests/sdk.rs.
// Environment: GATEWAY, CLIENT_KEY; the models are those of suite.py.

import assert from 'node:assert/strict';
import * as openai from 'openai';
import * as anthropic from '@anthropic-ai/sdk';

const gateway = process.env.GATEWAY;
const apiKey = process.env.CLIENT_KEY;
const messages = [{ role: 'user', content: 'Hello?' }];
const oai = new openai.OpenAI({ baseURL: `${gateway}/v1`, apiKey, maxRetries: 0, timeout: 20_000 });
const ant = new anthropic.Anthropic({ baseURL: gateway, apiKey, maxRetries: 0, timeout: 20_000 });
const chat = (model, more = {}) => oai.chat.completions.create({ model, messages, ...more });
const message = (model, more = {}) => ant.messages.create({ model, max_tokens: 100, messages, ...more });

async function raises(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.equal(error.constructor.name, kind.name, `${error.constructor.name} instead of ${kind.name}: ${error.message}`);
    return error;
  }
  assert.fail(`nothing was thrown instead of ${kind.name}`);
}

const checks = {
  async openaiChat() {
    const answer = await chat('good');
    assert.equal(answer.choices[0].message.content, 'Hello from the fake upstream.');
    assert.ok(answer._request_id);
  },
  async openaiChatStream() {
    let text = '';
    let usage;
    for await (const chunk of await chat('good', { stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, 'Hello from the fake upstream.');
    assert.ok(usage.completion_tokens > 0);
  },
  async openaiTools() {
    const runner = oai.chat.completions.stream({ model: 'tools', messages, tools: [{ type: 'function', function: { name: 'weather', parameters: {} } }] });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, '{"city":"Paris"}');
  },
  async openaiResponses() {
    assert.equal((await oai.responses.create({ model: 'good', input: 'Hello?' })).output_text, 'Hello from the fake upstream.');
    const types = [];
    for await (const event of await oai.responses.create({ model: 'thinks', input: 'Hello?', stream: true })) types.push(event.type);
    assert.deepEqual([types.at(0), types.at(-1)], ['response.created', 'response.completed']);
  },
  async openaiEmbeddingsAndModels() {
    const answer = await oai.embeddings.create({ model: 'good', input: ['a', 'b'] });
    assert.deepEqual([answer.data.length, answer.data[0].embedding.length], [2, 8]);
    const names = [];
    for await (const model of oai.models.list()) names.push(model.id);
    assert.ok(names.includes('good') && names.includes('tools'), names.join());
  },
  async openaiErrors() {
    const classes = {
      400: openai.BadRequestError, 404: openai.NotFoundError, 409: openai.ConflictError, 422: openai.UnprocessableEntityError,
      429: openai.RateLimitError, 500: openai.InternalServerError, 503: openai.InternalServerError, 401: openai.InternalServerError,
    };
    for (const [status, kind] of Object.entries(classes)) {
      const error = await raises(kind, () => chat(`status-${status}`));
      assert.ok(error.code && error.requestID, `${status}: ${JSON.stringify(error.error)}`);
    }
    assert.equal((await raises(openai.NotFoundError, () => chat('nonsense'))).code, 'model_not_found');
    await raises(openai.PermissionDeniedError, () => chat('forbidden'));
    const other = oai.withOptions({ apiKey: 'wrong' });
    await raises(openai.AuthenticationError, () => other.chat.completions.create({ model: 'good', messages }));
  },
  async openaiBrokenStreams() {
    for (const model of ['cut', 'fails']) {
      let text = '';
      await raises(openai.APIError, async () => {
        for await (const chunk of await chat(model, { stream: true })) text += chunk.choices[0].delta.content ?? '';
      });
      assert.ok(text.startsWith('Hello'), text);
    }
  },
  async openaiAbort() {
    const stream = await chat('slow', { stream: true });
    for await (const _ of stream) break;
  },
  async anthropicMessages() {
    const answer = await message('good');
    assert.deepEqual([answer.content[0].text, answer.stop_reason], ['Hello from the fake upstream.', 'end_turn']);
    assert.ok((await ant.messages.countTokens({ model: 'good', messages })).input_tokens > 0);
  },
  async anthropicStreams() {
    const good = await ant.messages.stream({ model: 'good', max_tokens: 100, messages }).finalMessage();
    assert.equal(good.content[0].text, 'Hello from the fake upstream.');
    const thinks = await ant.messages.stream({ model: 'thinks', max_tokens: 100, messages }).finalMessage();
    assert.deepEqual(thinks.content.map((b) => b.type), ['thinking', 'text']);
    const tools = await ant.messages.stream({ model: 'tools', max_tokens: 100, messages }).finalMessage();
    assert.deepEqual(tools.content[0].input, { city: 'Paris' });
  },
  async anthropicErrors() {
    const classes = {
      400: anthropic.BadRequestError, 404: anthropic.NotFoundError, 409: anthropic.ConflictError, 422: anthropic.UnprocessableEntityError,
      429: anthropic.RateLimitError, 500: anthropic.InternalServerError,
    };
    for (const [status, kind] of Object.entries(classes)) {
      const error = await raises(kind, () => message(`status-${status}`));
      assert.equal(error.error.type, 'error', `${status}: ${JSON.stringify(error.error)}`);
    }
    const error = await raises(anthropic.NotFoundError, () => message('nonsense'));
    assert.equal(error.error.error.details.error_code, 'model_not_found');
    const other = ant.withOptions({ apiKey: 'wrong' });
    await raises(anthropic.AuthenticationError, () => other.messages.create({ model: 'good', max_tokens: 1, messages }));
  },
  async anthropicBrokenStreams() {
    for (const model of ['cut', 'fails']) {
      await assert.rejects(ant.messages.stream({ model, max_tokens: 100, messages }).finalMessage(), anthropic.APIError);
    }
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
}
console.log(`${Object.keys(checks).length - failed} of ${Object.keys(checks).length}`);
process.exit(failed > 0 ? 1 : 0);
