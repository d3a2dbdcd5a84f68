"""What a compose file says of one service that runs an image: the keys that a sandbox has an answer for.

Another key is an error with its line. Nothing is built, and one service is one sandbox.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from inspect_ai.util import ComposeConfig

_LARGEST = 1 << 20
"""Bytes of a compose file."""

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}

_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|(?P<bare>\w+)|\{(?P<name>\w+)(?:(?P<how>:?-)(?P<otherwise>[^}]*))?\})?")


class ComposeError(Exception):
    """A compose file that no sandbox can be made of."""


@dataclass
class Service:
    """One service, in the words of a policy."""

    image: str
    policy: dict[str, Any] = field(default_factory=dict)
    user: str | None = None
    directory: str | None = None
    """Where commands start, if not in the directory of the image."""
    entrypoint: list[str] | None = None
    command: list[str] | None = None

    def argv(self, config: Mapping[str, Any]) -> list[str]:
        """The command of the service with that configuration of its image; empty if the file names none.

        Docker executes what the image says if a file names nothing. Here a sandbox lives without a command.
        """
        if self.entrypoint is None and self.command is None:
            return []
        if self.entrypoint is not None:
            return [*self.entrypoint, *(self.command or [])]
        return [*(config.get("Entrypoint") or []), *(self.command or [])]


def variables_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a sample as the variables that Inspect gives to compose files."""
    return {f"SAMPLE_METADATA_{key.replace(' ', '_').upper()}": str(value) for key, value in metadata.items()}


def variables_in(config: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Those that a file mentions: samples in which they differ have sandboxes that differ."""
    text = _read(config)
    return {name: value for name, value in variables_of(metadata).items() if name in text}


def service_of(config: str | ComposeConfig, variables: Mapping[str, str]) -> Service:
    """Reads a file, or what Inspect has read.

    Variables in texts are those of `variables`, then those of this process.
    """
    if isinstance(config, str):
        return _Reader(config, _read(config), variables).service()
    dumped = config.model_dump(by_alias=True, exclude_none=True, mode="json")
    return _Reader("compose", yaml.safe_dump(dumped), variables).service()


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ComposeError(f"{path}: it has more than {_LARGEST} bytes")
    return text


class _Reader:
    """Reads the nodes of a file, which know their lines."""

    def __init__(self, name: str, text: str, variables: Mapping[str, str]) -> None:
        self._name = name
        self._variables = {**os.environ, **variables}
        self._loader = yaml.SafeLoader(text)
        try:
            self._root = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
            raise ComposeError(f"{name}{line}: {error.problem or error}") from error
        except yaml.YAMLError as error:
            raise ComposeError(f"{name}: {error}") from error

    def service(self) -> Service:
        services = None
        for key, node, value in self._entries(self._root, "the file"):
            if key == "services":
                services = list(self._entries(value, key))
            elif key not in ("version", "name") and not key.startswith("x-"):
                raise self._error(node, f"`{key}` has no meaning for a sandbox; remove it")
        if not services:
            raise ComposeError(f"{self._name}: it has no services")
        if len(services) > 1:
            raise self._error(services[1][1], f"`{services[1][0]}` is a second service, and a sample has one sandbox")
        name, node, value = services[0]
        return self._service(name, node, value)

    def _service(self, name: str, at: yaml.Node, service: yaml.Node) -> Service:
        readers: dict[str, Callable[[yaml.Node], Any]] = {
            "image": self._text,
            "command": self._words,
            "entrypoint": self._words,
            "working_dir": self._path,
            "user": self._text,
            "environment": self._environment,
            "mem_limit": self._size,
            "cpus": self._number,
            "network_mode": self._no_network,
            "tmpfs": self._tmpfs,
            # A sandbox has an init anyway.
            "init": self._boolean,
        }
        found: dict[str, Any] = {}
        for key, node, value in self._entries(service, name):
            if key == "build":
                how = "docker build -t NAME . && docker save NAME | kennel image import -"
                raise self._error(node, f"no image is built here: build it before ({how}) and write `image: NAME`")
            if key in readers:
                found[key] = readers[key](value)
            elif not key.startswith("x-"):
                raise self._error(node, f"`{key}` has no meaning for a sandbox; remove it")
        if "image" not in found:
            raise self._error(at, f"the service `{name}` names no image")
        limits = {word: found[key] for key, word in (("mem_limit", "memory"), ("cpus", "cpus")) if key in found}
        keys = {"user": "user", "environment": "env", "tmpfs": "mounts"}
        policy = {word: found[key] for key, word in keys.items() if key in found}
        return Service(
            image=found["image"],
            policy={"image": found["image"], **policy, **({"limits": limits} if limits else {})},
            user=found.get("user"),
            directory=found.get("working_dir"),
            entrypoint=found.get("entrypoint"),
            command=found.get("command"),
        )

    # Values.

    def _entries(self, node: yaml.Node | None, what: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            reason = f"{what} must have keys and values"
            raise self._error(node, reason) if node is not None else ComposeError(f"{self._name}: {reason}")
        # What is merged (`<<`) comes first, so that what follows takes its place.
        self._loader.flatten_mapping(node)
        for key, value in node.value:
            yield str(self._scalar(key)), key, value

    def _items(self, node: yaml.Node) -> list[yaml.Node]:
        return node.value if isinstance(node, yaml.SequenceNode) else [node]

    def _scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, "a single value is expected here")
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self._error(node, f"`{node.value}` cannot be read: {error}") from error
        return self._interpolated(node, value) if isinstance(value, str) else value

    def _interpolated(self, node: yaml.Node, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found["bare"] or found["name"]
            if found["escaped"]:
                return "$"
            if name is None:
                raise self._error(node, f"a variable of {text!r} is not written as $NAME, ${{NAME}} or ${{NAME:-VALUE}}")
            given = self._variables.get(name)
            if given is None or (found["how"] == ":-" and not given):
                if found["how"] is None:
                    raise self._error(node, f"the variable {name} is not set")
                return str(found["otherwise"])
            return given

        return _VARIABLE.sub(value, text)

    def _text(self, node: yaml.Node) -> str:
        value = self._scalar(node)
        if isinstance(value, bool) or value is None or value == "":
            raise self._error(node, "a text is expected here")
        return str(value)

    def _words(self, node: yaml.Node) -> list[str]:
        if isinstance(node, yaml.SequenceNode):
            return [self._text(each) for each in node.value]
        value = self._scalar(node)
        if value is None:
            return []
        try:
            return shlex.split(str(value))
        except ValueError as error:
            raise self._error(node, f"{value!r} is no command: {error}") from error

    def _path(self, node: yaml.Node) -> str:
        path = self._text(node)
        if not path.startswith("/"):
            raise self._error(node, f"{path!r} must be an absolute path")
        return path

    def _boolean(self, node: yaml.Node) -> bool:
        value = self._scalar(node)
        if not isinstance(value, bool):
            raise self._error(node, "true or false is expected here")
        return value

    def _number(self, node: yaml.Node) -> float:
        try:
            return float(self._text(node))
        except ValueError:
            raise self._error(node, "a number is expected here") from None

    def _size(self, node: yaml.Node) -> int:
        text = self._text(node).strip().lower()
        number = text.rstrip("bkmg")
        unit = _UNITS.get(text[len(number) :])
        try:
            return int(float(number) * unit)  # type: ignore[operator]
        except (ValueError, TypeError, OverflowError):
            raise self._error(node, f"{text!r} is no size such as 512m or 2g") from None

    def _environment(self, node: yaml.Node) -> dict[str, Any]:
        given: dict[str, str] = {}
        passed: list[str] = []
        if isinstance(node, yaml.SequenceNode):
            pairs = [(self._text(each).partition("="), each) for each in node.value]
            named = [(name, value if equals else None, each) for (name, equals, value), each in pairs]
        else:
            named = [(name, self._scalar(value), value) for name, _, value in self._entries(node, "environment")]
        for name, value, at in named:
            if isinstance(value, bool):
                raise self._error(at, f"write the value of {name} in quotes: true and false are no texts")
            if value is None:
                passed.append(name)
            else:
                given[name] = str(value)
        return {"set": given, "pass": passed}

    def _no_network(self, node: yaml.Node) -> None:
        if self._text(node) != "none":
            raise self._error(node, "`network_mode` can only be none: a policy file may allow hosts, a compose file may not")

    def _tmpfs(self, node: yaml.Node) -> list[dict[str, Any]]:
        return [self._tmpfs_of(each) for each in self._items(node)]

    def _tmpfs_of(self, node: yaml.Node) -> dict[str, Any]:
        target, _, options = self._text(node).partition(":")
        made: dict[str, Any] = {"type": "tmpfs", "target": target}
        for option in filter(None, options.split(",")):
            name, _, value = option.partition("=")
            if name != "size":
                raise self._error(node, f"of a tmpfs only `size` can be set, not {name!r}")
            sized = yaml.ScalarNode("tag:yaml.org,2002:str", value, node.start_mark, node.end_mark)
            made["size"] = self._size(sized)
        return made

    def _error(self, node: yaml.Node, reason: str) -> ComposeError:
        return ComposeError(f"{self._name}:{node.start_mark.line + 1}: {reason}")
