"""Query strings and messages."""

import pytest

from interpreter import wire
from interpreter.errors import InvalidRequest, UnknownField
from interpreter.http.requests import read_body, read_query


@pytest.mark.parametrize(
    ("model", "query", "kind", "said"),
    [
        (wire.PurgeQuery, "purge=true&purge=true", InvalidRequest, "'purge' twice"),
        (wire.PurgeQuery, "purge=true&%70urge=false", InvalidRequest, "'purge' twice"),
        (wire.PurgeQuery, "purge=1", InvalidRequest, "purge must be true or false"),
        (wire.PurgeQuery, "purge=True", InvalidRequest, "purge must be true or false"),
        (wire.PurgeQuery, "purge", InvalidRequest, "purge must be true or false"),
        (wire.PurgeQuery, "prge=true", UnknownField, "'prge'; did you mean 'purge'?"),
        (wire.ForceQuery, "purge=true", UnknownField, "no query parameter 'purge'"),
        (wire.NoQuery, "token=0123456789abcdef", UnknownField, "no query parameter 'token'"),
        (wire.NoQuery, "&=1", UnknownField, "no query parameter ''"),
        (wire.SessionQuery, "session=a%2Fb", InvalidRequest, "session must be 1 to 64"),
        (wire.SessionQuery, "session=..", InvalidRequest, "session must be 1 to 64"),
        (wire.SessionQuery, "session=a%0a", InvalidRequest, "session must be 1 to 64"),
        (wire.SessionQuery, "session=" + "a" * 65, InvalidRequest, "session must be 1 to 64"),
        (wire.SessionQuery, "session=%", InvalidRequest, "malformed percent"),
        (wire.SessionQuery, "session=%zz", InvalidRequest, "malformed percent"),
        (wire.SessionQuery, "session=%ff", InvalidRequest, "not UTF-8"),
        (wire.KernelQuery, "context=a+b", InvalidRequest, "context must be 1 to 64"),
    ],
)
def test_a_query_is_refused_by_name(model, query, kind, said):
    with pytest.raises(kind) as refused:
        read_query(model, query)
    assert said in str(refused.value)
    assert "0123456789abcdef" not in str(refused.value)


def test_a_query_means_what_it_says():
    assert read_query(wire.PurgeQuery, "purge=true&force=false") == wire.PurgeQuery(purge=True)
    assert read_query(wire.SessionQuery, "session=") == wire.SessionQuery(session=None)
    assert read_query(wire.KernelQuery, "session=a&context=") == wire.KernelQuery(session="a", context="default")
    assert read_query(wire.SessionQuery, "session=%63hat_A-1").session == "chat_A-1"


def test_an_unknown_field_goes_before_other_faults():
    with pytest.raises(UnknownField, match="'statefull'; did you mean 'stateful'"):
        read_body(wire.ExecBody, b'{"scope": 1, "statefull": true}')


def test_what_a_caller_sent_is_quoted_cut_and_in_ascii():
    with pytest.raises(UnknownField) as refused:
        read_body(wire.ExecBody, ('{"%s": 1}' % ("\u202eé<script>" * 100)).encode())
    assert str(refused.value).isascii()
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("body", [b"", b"{}", b" {} "])
def test_a_body_that_need_not_be_there(body):
    assert read_body(wire.NoBody, body) == wire.NoBody()


def test_an_empty_body_is_said_to_be_empty():
    with pytest.raises(InvalidRequest, match="The body is empty"):
        read_body(wire.ExecBody, b"")
