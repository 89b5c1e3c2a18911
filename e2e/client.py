"""A client of the gateway that uses the official OpenAI SDK; the suite drives it with one JSON command a line and reads one JSON answer a line.

  {"op": "chat", "key": K, "model": M, "stream": false}  -> {"ok": true, "connection": C, "target": T, "text": ...}
                                                         or {"ok": false, "class": "RateLimitError", "status": 429, "code": ..., "retry_after": ...}
  {"op": "load", "key": K, "model": M, "threads": 2}      -> {"started": true}     requests without a pause until `stop`
  {"op": "count", "more": N}                             -> {"requests": ...}      once N more requests have been answered
  {"op": "stop"}                                         -> {"requests": n, "failures": [...], "connections": {C: n}}
"""

import json
import re
import sys
import threading

import openai

base_url = sys.argv[1]


def decision(headers):
    fields = dict(re.findall(r"(\w+)=([^;]*)", headers.get("x-omniroute-decision", "")))
    return {"connection": fields.get("connection"), "target": fields.get("target"), "attempts": int(fields.get("attempts", 0))}


def chat(client, model, stream):
    messages = [{"role": "user", "content": "Say something."}]
    try:
        raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, stream=stream)
        answer = raw.parse()
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            text = answer.choices[0].message.content
        return {"ok": True, "text": text, **decision(raw.headers)}
    except openai.APIStatusError as error:
        headers = error.response.headers
        return {"ok": False, "class": type(error).__name__, "status": error.status_code, "code": error.code, "message": str(error),
                "retry_after": headers.get("retry-after"), "origin": headers.get("x-omniroute-origin")}
    except openai.APIError as error:
        return {"ok": False, "class": type(error).__name__, "status": None, "code": None, "message": repr(error.__cause__ or error)}


def client_for(key):
    return openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60)


class Load:
    """Requests in a row, from a few threads, until it is stopped."""

    def __init__(self, key, model, threads):
        self.stopping, self.progress = threading.Event(), threading.Condition()
        self.requests, self.failures, self.connections = 0, [], {}
        self.threads = [threading.Thread(target=self.work, args=(client_for(key), model, n % 2 == 1)) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def work(self, client, model, stream):
        while not self.stopping.is_set():
            answer = chat(client, model, stream)
            with self.progress:
                self.requests += 1
                if answer["ok"]:
                    self.connections[answer["connection"]] = self.connections.get(answer["connection"], 0) + 1
                elif len(self.failures) < 20:
                    self.failures.append(answer)
                self.progress.notify_all()

    def wait(self, more):
        with self.progress:
            goal = self.requests + more
            self.progress.wait_for(lambda: self.requests >= goal, timeout=60)
            return {"requests": self.requests}

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return {"requests": self.requests, "failures": self.failures, "connections": self.connections}


load = None
for line in sys.stdin:
    command = json.loads(line)
    if command["op"] == "chat":
        result = chat(client_for(command["key"]), command["model"], command["stream"])
    elif command["op"] == "load":
        load = Load(command["key"], command["model"], command["threads"])
        result = {"started": True}
    elif command["op"] == "count":
        result = load.wait(command["more"])
    else:
        result = load.stop()
    print(json.dumps(result), flush=True)
