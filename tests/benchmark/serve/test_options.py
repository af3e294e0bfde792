"""Where requests go, and which options do not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace import ConfigError
from headrace.benchmark.serve.datasets import Dataset
from headrace.benchmark.serve.http import Address
from headrace.benchmark.serve.options import LoadOptions

HERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "api", "authority", "path"),
    [
        (HERE, None, "127.0.0.1:8000", "/v1/completions"),
        (f"{HERE}/", "chat", "127.0.0.1:8000", "/v1/chat/completions"),
        (f"{HERE}/v1", None, "127.0.0.1:8000", "/v1/completions"),
        (f"{HERE}/v1/", "chat", "127.0.0.1:8000", "/v1/chat/completions"),
        (f"{HERE}/v1/completions", None, "127.0.0.1:8000", "/v1/completions"),
        (f"{HERE}/v1/completions", "chat", "127.0.0.1:8000", "/v1/chat/completions"),
        (f"{HERE}/v1/chat/completions", None, "127.0.0.1:8000", "/v1/chat/completions"),
        (f"{HERE}/v1/chat/completions", "completions", "127.0.0.1:8000", "/v1/completions"),
        ("https://api.example.com/openai", None, "api.example.com", "/openai/v1/completions"),
        ("https://api.example.com:8443", None, "api.example.com:8443", "/v1/completions"),
        ("http://[::1]:8000", None, "[::1]:8000", "/v1/completions"),
        ("http://[::1]", None, "[::1]", "/v1/completions"),
    ],
)
def test_where_requests_go(url: str, api: str | None, authority: str, path: str) -> None:
    options = LoadOptions(url=url, api=api)
    assert (options.address.authority, options.path) == (authority, path)
    assert options.endpoint == ("chat" if "chat" in path else "completions")


def test_default_ports() -> None:
    assert Address.parse("http://host") == Address("host", 80, False, "")
    assert Address.parse("https://host/a/") == Address("host", 443, True, "/a")


def test_how_many_requests() -> None:
    shared = Dataset(name="shared-prefix", prefixes=3, suffixes=5)
    assert LoadOptions(url=HERE).count == 100
    assert LoadOptions(url=HERE, dataset=shared).count == 15
    assert LoadOptions(url=HERE, dataset=shared, num_requests=4).count == 4
    assert LoadOptions(url=HERE, dataset=shared, duration=1.0, concurrency=1).count is None
    assert LoadOptions(url=HERE, duration=1.0, num_requests=7).count == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "url: '127.0.0.1:8000' is no http:// or https:// URL"),
        ({"url": "ftp://host"}, "url: 'ftp://host' is no http"),
        ({"url": "http://host:port"}, "url: 'http://host:port': "),
        ({"url": "http://"}, "url: 'http://' is no http"),
        ({"api": "responses"}, "api: 'responses' is neither completions nor chat"),
        ({"request_rate": 0.0}, "request_rate: 0.0 is not above 0"),
        ({"request_rate": math.nan}, "request_rate: nan is not above 0"),
        ({"burstiness": -1.0}, "burstiness: -1.0 is not above 0"),
        ({"timeout": 0.0}, "timeout: 0.0 is not above 0"),
        ({"duration": 0.0, "concurrency": 1}, "duration: 0.0 is not above 0"),
        ({"cancel": 1.1}, "cancel: 1.1 is not a share"),
        ({"slow_readers": -0.1}, "slow_readers: -0.1 is not a share"),
        ({"cancel": 0.1, "stream": False}, "stream: cancelled requests and slow readers need streams"),
        ({"percentiles": (50.0, 101.0)}, "percentiles: 101 is not from 0 to 100"),
        ({"goodput": {"itl": 5.0}}, "goodput: itl:5 is none of ttft, tpot, e2e"),
        ({"goodput": {"ttft": 0.0}}, "goodput: ttft:0 is none of"),
        ({"duration": 5.0}, "duration: without num_requests it needs a request_rate or a concurrency"),
        ({"api_key": "a\r\nHost: b"}, "api_key: holds what a header cannot"),
        ({"api_key": "schlüssel"}, "api_key: holds what a header cannot"),
    ],
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        LoadOptions(**{"url": HERE, **given})
    assert str(error.value).startswith(message)


def test_the_key_is_in_no_report() -> None:
    options = LoadOptions(url=HERE, api_key="sk-secret")
    assert options.headers["Authorization"] == "Bearer sk-secret"
    assert "secret" not in repr(options) + repr(options.as_dict())
