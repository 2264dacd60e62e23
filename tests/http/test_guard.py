"""Host, Origin and keys: tables, hostile rows first."""

import pytest

from interpreter.errors import ForbiddenHost, ForbiddenOrigin, Unauthorized
from interpreter.http.guard import Guard, offered_key

KEY, OTHER = "a-key-of-the-tests", "another-of-the-tests"
GUARD = Guard(keys=[KEY, OTHER], hosts=["box.example.org"], origins=["https://chat.example.org"])


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("evil.example", False),
        ("box.example.org.evil.example", False),
        ("evil-box.example.org", False),
        ("sub.box.example.org", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("127.1", False),
        ("0x7f.0.0.1", False),
        ("256.0.0.1", False),
        ("[::1", False),
        ("[evil.example]", False),
        ("::1", False),
        ("", False),
        (".", False),
        (":8090", False),
        ("localhost:80:80", False),
        ("localhost:", False),
        ("localhost:port", False),
        ("user@localhost", False),
        ("localhost/", False),
        ("localhost, evil.example", False),
        ("lócalhost", False),
        ("localhost", True),
        ("LOCALHOST:8090", True),
        ("localhost.", True),
        ("127.0.0.1:8090", True),
        ("10.1.2.3", True),
        ("[::1]:8090", True),
        ("[fe80::1]", True),
        ("interpreter:8090", True),
        ("box.example.org", True),
        ("Box.Example.Org:443", True),
        ("box.example.org.", True),
        (None, True),
    ],
)
def test_host(host, accepted):
    if accepted:
        GUARD.check_host(host)
    else:
        with pytest.raises(ForbiddenHost):
            GUARD.check_host(host)


@pytest.mark.parametrize(
    ("origin", "host", "accepted"),
    [
        ("https://evil.example", "localhost:8090", False),
        ("null", "localhost:8090", False),
        ("", "localhost:8090", False),
        ("http://localhost", "localhost:8090", False),
        ("http://localhost:8091", "localhost:8090", False),
        ("http://localhost:8090.evil.example", "localhost:8090", False),
        ("http://localhost:8090/", "localhost:8090", False),
        ("file://localhost:8090", "localhost:8090", False),
        ("https://chat.example.org:444", "localhost:8090", False),
        ("http://chat.example.org", "localhost:8090", False),
        ("https://sub.chat.example.org", "localhost:8090", False),
        ("http://localhost:8090, http://evil.example", "localhost:8090", False),
        ("http://localhost:8090", None, False),
        (None, "localhost:8090", True),
        ("http://localhost:8090", "localhost:8090", True),
        ("http://LOCALHOST:8090", "localhost:8090", True),
        ("https://box.example.org", "box.example.org", True),
        ("https://chat.example.org", "localhost:8090", True),
        ("HTTPS://chat.example.org", "localhost:8090", True),
    ],
)
def test_origin(origin, host, accepted):
    if accepted:
        GUARD.check_origin(origin, host)
    else:
        with pytest.raises(ForbiddenOrigin):
            GUARD.check_origin(origin, host)


@pytest.mark.parametrize(
    ("api_key", "authorization", "accepted"),
    [
        (None, None, False),
        ("", None, False),
        (KEY[:-1], None, False),
        (KEY + "x", None, False),
        (KEY.upper(), None, False),
        (f"{KEY},{OTHER}", None, False),
        ("schlüssel", None, False),
        ("\udcff", None, False),
        (None, KEY, False),
        (None, "Bearer", False),
        (None, "Bearer ", False),
        (None, f"Basic {KEY}", False),
        (None, f"Bearer {KEY} {KEY}", False),
        (None, f"Bearer  {OTHER[:-1]}", False),
        (KEY, None, True),
        (OTHER, None, True),
        (None, f"Bearer {KEY}", True),
        (None, f"bearer {KEY}", True),
        (None, f"BEARER   {OTHER} ", True),
        (KEY, "Basic cHJveHk6cHJveHk=", True),
        ("wrong", f"Bearer {KEY}", True),
    ],
)
def test_key(api_key, authorization, accepted):
    if accepted:
        GUARD.check_key(api_key, authorization)
    else:
        with pytest.raises(Unauthorized):
            GUARD.check_key(api_key, authorization)


@pytest.mark.parametrize(
    ("protocols", "key"),
    [
        (None, None),
        ("", None),
        ("cellbox", None),
        ("cellbox.key.", None),
        ("cellbox.key", None),
        ("cellbox.key.a", None),  # no number of bytes
        ("cellbox.key.YQ==", None),
        ("cellbox.key.YW/h", None),
        ("cellbox.key.YW\udcff", None),
        ("key.YQ", None),
        ("x.cellbox.key.YQ", None),
        ("Cellbox.Key.YQ", None),
        ("cellbox.key.YQ.YQ", None),
        ("cellbox, cellbox.key.YS1rZXk", "a-key"),
        ("cellbox.key.YS1rZXk,cellbox", "a-key"),
        (" cellbox.key.c2NobMO8c3NlbA\t", "schlüssel"),
        ("cellbox.key._w", "\udcff"),
    ],
)
def test_a_key_among_subprotocols(protocols, key):
    assert offered_key(protocols) == key


def test_a_key_that_was_offered_opens_and_another_does_not():
    GUARD.check_key(None, None, KEY)
    GUARD.check_key("wrong", None, KEY)
    with pytest.raises(Unauthorized):
        GUARD.check_key(None, None, KEY + "x")


def test_a_guard_without_a_key_cannot_be():
    with pytest.raises(ValueError, match="open to all"):
        Guard(keys=[])
