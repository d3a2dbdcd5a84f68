"""A connector in Python, as a component: it asks a server for the weather."""

import json
import os
import socket

from componentize_py_types import Err
from wit_world import Error
from wit_world.imports import host


class WitWorld:
    def invoke(self, op: str, args_json: str) -> str:
        args = json.loads(args_json)
        if op == "forecast":
            return json.dumps(forecast(args["city"]))
        if op == "surroundings":
            return json.dumps(surroundings())
        if op == "hoard":
            everything = []
            while True:
                everything.append(bytearray(1 << 20))
        if op == "divide":
            return str(1 / args["by"])
        raise Err(Error("unknown_operation", op))


def forecast(city):
    headers = [("accept", "application/json")]
    request = host.Request(None, f"https://weather.example/{city}", headers, None, None)
    try:
        response = host.http_request(request)
    except Err as failed:
        raise Err(Error(failed.value.class_, failed.value.message))
    host.log("debug", f"status {response.status}")
    return {"city": city, "degrees": json.loads(response.body)["degrees"]}


def surroundings():
    """Everything that a program of the host would have. Each must be empty or fail."""
    found = {"variables": dict(os.environ), "socket": "", "file": "", "name": ""}
    try:
        socket.create_connection(("127.0.0.1", 80))
        found["socket"] = "connected"
    except (OSError, LookupError):
        pass
    try:
        found["name"] = str(socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
    except (OSError, LookupError):
        pass
    try:
        found["file"] = open("/etc/passwd").read()
    except OSError:
        pass
    return found
