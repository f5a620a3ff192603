"""Takes over the channel and answers every order itself, at once, without doing anything."""

# problem: tanhs
# device: any
# verdict: incorrect|rejected
# defence: outputs are poisoned: an output that nobody writes is wrong

import json
import os


def say(message):
    os.write(3, json.dumps(message).encode() + b"\n")


def serve():
    say({"op": "loaded"})
    rest = b""
    while True:
        line, newline, rest = rest.partition(b"\n")
        if not newline:
            if not (more := os.read(3, 65536)):
                os._exit(0)
            rest = line + more
            continue
        say({"op": "done", "ms": [0.4] * len(json.loads(line).get("calls", []))})


class ModelNew:
    def __init__(self):
        serve()
