"""One answer for all who ask for the same: it is made once, is nobody else's, and not older than what is known."""

import asyncio
from types import SimpleNamespace

import pytest

from dataprep.service.web import sharing
from dataprep.service.web.sessions import Session
from dataprep.service.web.sharing import MOST, Sharing


class Site:
    """An application that counts what it makes, behind the middleware; and a state that says what was seen last."""

    def __init__(self):
        self.made, self.digest, self.fails, self.status = [], "a", False, 200
        self.app = Sharing(self.answer, self)
        self.settled = "1"
        self.begin = asyncio.Event()
        self.begin.set()

    @property
    def last(self):
        return SimpleNamespace(digest=self.digest, settled=self.settled)

    def seen(self):
        return self.last

    async def answer(self, scope, receive, send):
        await self.begin.wait()
        self.made.append(scope["path"])
        if self.fails:
            raise OSError("no")
        session = scope["state"]["session"]
        code = "" if session is None else session.csrf
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": f"{self.digest} {code}".encode()})

    async def ask(self, path="/", session=None, method="GET", host=b"a", query=b""):
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "scheme": "http"}
        scope |= {"headers": [(b"host", host)], "state": {"session": session}}
        sent = []

        async def send(message):
            sent.append(message)

        await self.app(scope, None, send)
        sent[0]["headers"].append((b"mine", b""))  # as the guard does
        assert len(sent[0]["headers"]) == 1
        return sent[1]["body"].decode()


def of(letter):
    return Session(cookie=f"cookie {letter}", csrf=letter * 64)


def test_who_asks_at_the_same_time_gets_one_answer_with_a_code_of_their_own():
    async def main():
        site = Site()
        site.begin.clear()
        asked = [asyncio.create_task(site.ask(session=of(letter))) for letter in "bcd"]
        await asyncio.sleep(0)
        site.begin.set()
        assert await asyncio.gather(*asked) == [f"a {letter * 64}" for letter in "bcd"]
        assert await site.ask(session=of("e")) == f"a {'e' * 64}"
        assert await site.ask() == "a "
        assert site.made == ["/", "/"]  # with a session, and without

    asyncio.run(main())


def test_it_is_made_anew_when_something_is_another():
    async def main():
        site = Site()
        assert [await site.ask("/"), await site.ask("/datasets/x"), await site.ask("/")] == ["a ", "a ", "a "]
        site.digest = "b"
        assert [await site.ask("/"), await site.ask("/datasets/x")] == ["b ", "a "]
        site.settled = "2"
        assert await site.ask("/datasets/x") == "b "
        site.digest = "c"
        await site.ask("/", method="POST")
        assert await site.ask("/datasets/x") == "c "
        assert site.made == ["/", "/datasets/x", "/", "/datasets/x", "/", "/datasets/x"]

    asyncio.run(main())


def test_it_is_made_anew_after_a_while(monkeypatch):
    async def main():
        site = Site()
        await site.ask()
        await site.ask("/datasets")
        monkeypatch.setattr(sharing, "KEPT_SECONDS", 0.0)
        await site.ask()
        await site.ask("/datasets")
        assert site.made == ["/", "/datasets", "/"]
        monkeypatch.setattr(sharing, "LIBRARY_SECONDS", 0.0)
        await site.ask("/datasets")
        assert len(site.made) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    "other", [{"host": b"evil.example"}, {"query": b"x=1"}, {"path": "/x"}, {"session": of("x")}], ids=lambda x: str(x)
)
def test_who_asks_for_something_else_gets_something_else(other):
    async def main():
        site = Site()
        await site.ask()
        await site.ask(**other)
        assert len(site.made) == 2

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/login", "/healthz", "/static/style.css", "/api/v1/events"])
def test_what_is_each_ones_own_is_not_shared(path):
    async def main():
        site = Site()
        await site.ask(path)
        await site.ask(path)
        assert len(site.made) == 2

    asyncio.run(main())


def test_who_goes_away_takes_nothing_from_the_others():
    async def main():
        site = Site()
        site.begin.clear()
        first, second = asyncio.create_task(site.ask()), asyncio.create_task(site.ask())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        site.begin.set()
        assert await second == "a "

    asyncio.run(main())


def test_that_something_is_not_there_is_not_kept():
    async def main():
        site = Site()
        site.status = 404
        await site.ask()
        await site.ask()
        assert len(site.made) == 2

    asyncio.run(main())


def test_a_failure_is_not_kept_and_many_answers_are_not():
    async def main():
        site = Site()
        site.fails = True
        with pytest.raises(OSError, match="no"):
            await site.ask()
        site.fails = False
        assert await site.ask() == "a "
        for number in range(3 * MOST):
            await site.ask("/", query=str(number).encode())
        assert len(site.app._known) == MOST

    asyncio.run(main())
