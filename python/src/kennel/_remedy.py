"""Remedies in the words of this package: keywords of `kennel.Session`, and methods.

A session sends a sentence as a text, or as a list of texts and of lists of settings: see `docs/protocol.md` of Kennel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MOUNTS = {"ro": "Mount.ro", "rw": "Mount.rw", "tmpfs": "Mount.tmpfs"}

# What is no key of a policy.
_OTHERS = {
    "learn": "kennel run --learn",
    "program": "a program of the call",
    "credentials": "the credential resolver",
    "discard": "Session.discard()",
    "as_owner": "a process of that user",
    "session.start": "kennel.Session(name=…)",
    "session.stop": "Session.close()",
    "session.list": "kennel session list",
    "session.exec": "Session.run()",
    "changes.discard": "kennel discard --workspace",
    "caches.list": "kennel cache list",
    "connector.check": "kennel connector check",
}

_LISTS = ("network.allow", "network.deny", "network.allow_addresses", "env.pass")


def _setting(setting: Mapping[str, Any]) -> str:
    """One setting.

    >>> _setting({"set": "network.allow", "value": "crates.io:443"})
    'allow=["crates.io:443"]'
    >>> _setting({"set": "limits.timeout", "value": "TIME"}), _setting({"set": "git", "value": "trust"})
    ('limits={"timeout": "TIME"}', 'git="trust"')
    >>> _setting({"set": "rw", "value": "/srv/a:/b"}), _setting({"set": "ro"}), _setting({"set": "env.pass"})
    ('mounts=[Mount.rw("/srv/a", "/b")]', 'Mount.ro', 'env.pass')
    """
    key, value = str(setting["set"]), setting.get("value")
    if key in _OTHERS:
        return _OTHERS[key]
    if value is None:
        return _MOUNTS.get(key, key)
    text = _quoted(value)
    if key in _MOUNTS:
        paths = ", ".join(map(_quoted, str(value).split(":", 1)))
        return f"mounts=[{_MOUNTS[key]}({paths})]"
    if key == "env.set":
        name, _, contents = str(value).partition("=")
        text = f"{{{_quoted(name)}: {_quoted(contents)}}}"
    text = f"[{text}]" if key in _LISTS else text
    if key == "network.allow":
        return f"allow={text}"
    table, _, name = key.partition(".")
    return f'{table}={{"{name}": {text}}}' if name else f"{table}={text}"


def _quoted(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def words(sentence: Any) -> str:
    """A sentence.

    >>> words([[{"set": "network.mode", "value": "proxy"}, {"set": "network.allow", "value": "a:1"}], " would allow it"])
    'network={"mode": "proxy"}, allow=["a:1"] would allow it'
    >>> words("run it again")
    'run it again'
    """
    if not isinstance(sentence, list):
        return str(sentence)
    return "".join(part if isinstance(part, str) else ", ".join(map(_setting, part)) for part in sentence)


def hint(sentence: Any) -> str | None:
    """A remedy, if there is one."""
    return None if sentence is None else words(sentence)


def within(values: Any) -> Any:
    """An object with all its remedies in words.

    >>> within({"details": {"remedy": ["see ", [{"set": "session.stop"}]]}})
    {'details': {'remedy': 'see Session.close()'}}
    """
    if isinstance(values, list):
        return [within(each) for each in values]
    if not isinstance(values, dict):
        return values
    return {key: hint(value) if key in ("remedy", "hint") else within(value) for key, value in values.items()}


def message(lines: bytes) -> bytes:
    r"""Lines for people. A session that refuses a request sends plain text.

    >>> message(b'"kennel: a"\n["kennel: hint: see ", [{"set": "session.stop"}]]\n')
    b'kennel: a\nkennel: hint: see Session.close()\n'
    >>> message(b"kennel: the session refused the request: x\n")
    b'kennel: the session refused the request: x\n'
    """
    if not lines.startswith((b'"', b"[")):
        return lines
    said = []
    for line in lines.decode("utf-8", "replace").splitlines():
        try:
            said.append(words(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            # The end of many lines is cut.
            continue
    return "".join(f"{line}\n" for line in said).encode()
