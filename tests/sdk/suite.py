"""The official Python SDKs of OpenAI and Anthropic, unmodified, against a running gateway. Called by tests/sdk.rs.

Environment: GATEWAY (http://host:port), CLIENT_KEY. Model `good` answers, `tools` calls a tool, `thinks` reasons first, `cut` and `fails`
break their streams, and `status-N` answers with status N.
"""

import asyncio
import os
import sys
import traceback

import anthropic
import openai

GATEWAY = os.environ["GATEWAY"]
KEY = os.environ["CLIENT_KEY"]
MESSAGES = [{"role": "user", "content": "Hello?"}]
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}

oai = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0, timeout=20)
ant = anthropic.Anthropic(base_url=GATEWAY, api_key=KEY, max_retries=0, timeout=20)

checks = []


def check(f):
    checks.append(f)
    return f


def raises(kind, call):
    """The error must be of exactly this class: that is what clients catch."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised instead of {kind.__name__}")


def chat(model, **more):
    return oai.chat.completions.create(model=model, messages=MESSAGES, **more)


def message(model, **more):
    return ant.messages.create(model=model, max_tokens=100, messages=MESSAGES, **more)


@check
def openai_chat():
    answer = chat("good")
    assert answer.choices[0].message.content == "Hello from the fake upstream."
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("chatcmpl-") and answer._request_id


@check
def openai_chat_stream_with_usage():
    chunks = list(chat("good", stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello from the fake upstream."
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


@check
def openai_chat_tools():
    answer = chat("tools", tools=[{"type": "function", "function": TOOL}])
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Paris"}')
    with oai.chat.completions.stream(model="tools", messages=MESSAGES, tools=[{"type": "function", "function": TOOL}]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city":"Paris"}'


@check
def openai_responses():
    answer = oai.responses.create(model="good", input="Hello?")
    assert answer.output_text == "Hello from the fake upstream." and answer.status == "completed"
    events = list(oai.responses.create(model="thinks", input="Hello?", stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    with oai.responses.stream(model="tools", input="Hello?") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output[0].name == "weather"


@check
def openai_embeddings_and_models():
    answer = oai.embeddings.create(model="good", input=["a", "b"])
    assert len(answer.data) == 2 and len(answer.data[0].embedding) == 8
    names = {m.id for m in oai.models.list()}
    assert {"good", "tools"} <= names, names


@check
def openai_asynchronous():
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0) as client:
            stream = await client.chat.completions.create(model="good", messages=MESSAGES, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(run()) == "Hello from the fake upstream."


@check
def openai_errors():
    classes = {
        400: openai.BadRequestError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
        503: openai.InternalServerError,
        529: openai.InternalServerError,
        # The credential of the gateway is never the client's problem.
        401: openai.InternalServerError,
        403: openai.InternalServerError,
    }
    for status, kind in classes.items():
        error = raises(kind, lambda status=status: chat(f"status-{status}"))
        assert error.code and error.message and error.request_id, (status, error.body)
    assert raises(openai.NotFoundError, lambda: chat("nonsense")).code == "model_not_found"
    assert raises(openai.PermissionDeniedError, lambda: chat("forbidden")).code
    other = oai.with_options(api_key="wrong")
    assert raises(openai.AuthenticationError, lambda: other.chat.completions.create(model="good", messages=MESSAGES)).code
    assert raises(openai.BadRequestError, lambda: oai.chat.completions.create(model=5, messages=MESSAGES)).param == "model"


@check
def openai_retries_as_it_is_told():
    retrying = oai.with_options(max_retries=2)
    error = raises(openai.RateLimitError, lambda: retrying.chat.completions.create(model="long-wait", messages=MESSAGES))
    assert error.response.headers["x-should-retry"] == "false" and int(error.response.headers["retry-after"]) > 60


@check
def openai_broken_streams():
    for model in ("cut", "fails"):
        text = []

        def read(model=model, text=text):
            for chunk in chat(model, stream=True):
                text.append(chunk.choices[0].delta.content or "")

        raises(openai.APIError, read)
        assert "".join(text).startswith("Hello"), text

    def read_responses():
        for event in oai.responses.create(model="cut", input="Hello?", stream=True):
            if event.type == "response.failed":
                raise RuntimeError(event.response.error.message)

    raises(RuntimeError, read_responses)


@check
def anthropic_messages():
    answer = message("good")
    assert answer.content[0].text == "Hello from the fake upstream." and answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens > 0 and answer._request_id
    assert ant.messages.count_tokens(model="good", messages=MESSAGES).input_tokens > 0


@check
def anthropic_streams():
    with ant.messages.stream(model="good", max_tokens=100, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "Hello from the fake upstream."
        assert stream.get_final_message().stop_reason == "end_turn"
    with ant.messages.stream(model="thinks", max_tokens=100, messages=MESSAGES) as stream:
        for _ in stream:
            pass
        kinds = [block.type for block in stream.get_final_message().content]
    assert kinds == ["thinking", "text"], kinds
    with ant.messages.stream(model="tools", max_tokens=100, messages=MESSAGES) as stream:
        for _ in stream:
            pass
        block = stream.get_final_message().content[0]
    assert (block.type, block.name, block.input) == ("tool_use", "weather", {"city": "Paris"})


@check
def anthropic_errors():
    classes = {
        400: anthropic.BadRequestError,
        404: anthropic.NotFoundError,
        409: anthropic.ConflictError,
        413: anthropic.RequestTooLargeError,
        422: anthropic.UnprocessableEntityError,
        429: anthropic.RateLimitError,
        500: anthropic.InternalServerError,
        503: anthropic.ServiceUnavailableError,
        529: anthropic.OverloadedError,
        401: anthropic.ServiceUnavailableError,
    }
    for status, kind in classes.items():
        error = raises(kind, lambda status=status: message(f"status-{status}"))
        assert error.body["type"] == "error" and error.body["error"]["type"], (status, error.body)
    error = raises(anthropic.NotFoundError, lambda: message("nonsense"))
    assert error.body["error"]["details"]["error_code"] == "model_not_found", error.body
    other = ant.with_options(api_key="wrong")
    raises(anthropic.AuthenticationError, lambda: other.messages.create(model="good", max_tokens=1, messages=MESSAGES))


@check
def anthropic_broken_streams():
    for model in ("cut", "fails"):

        def read(model=model):
            with ant.messages.stream(model=model, max_tokens=100, messages=MESSAGES) as stream:
                for _ in stream:
                    pass

        try:
            read()
        except anthropic.APIStatusError as error:
            assert error.body, error
        else:
            raise AssertionError(f"{model}: half an answer looks complete")


failed = 0
for one in checks:
    try:
        one()
        print(f"ok   {one.__name__}", flush=True)
    except Exception:  # noqa: BLE001
        failed += 1
        print(f"FAIL {one.__name__}\n{traceback.format_exc()}", flush=True)
print(f"openai {openai.__version__}, anthropic {anthropic.__version__}: {len(checks) - failed} of {len(checks)}")
sys.exit(failed > 0)
