"""Three documents of routes, and the handlers that they name.

python examples/routes/main.py
"""

from __future__ import annotations

from pathlib import Path

import trio

import heddle

HERE = Path(__file__).parent
WORDS = {"de": {"thread": "Faden"}, "fr": {"thread": "fil"}}


def pay(exchange: heddle.Exchange) -> dict[str, object]:
    """Stand in for a bank."""
    match exchange.body:
        case {"amount": amount, "currency": currency}:
            return {"receipt": f"{amount} {currency}"}
        case _:
            raise TypeError("the tool has let something through")


def find(exchange: heddle.Exchange) -> dict[str, object]:
    """Stand in for a knowledge base."""
    return {"results": [exchange.body], "total": 1}


def dictionary(exchange: heddle.Exchange) -> dict[str, object]:
    """Stand in for a dictionary."""
    match exchange.body:
        case {"text": str(text), "to": str(language)}:
            return {"text": WORDS[language].get(text, text)}
        case _:
            raise TypeError("the tool has let something through")


async def main() -> None:
    async with heddle.Router.load(HERE / "search.yaml") as router:
        found = await router.send("direct://ask", "what is a heddle?")
        print("asked:", found.body)
        print("by way of:", found.headers)

    async with heddle.Router.load(HERE / "pay.yaml", handlers={"payments-handler": pay}) as router:
        print("paid:", (await router.send("tool://pay", '{"amount": 5, "currency": "EUR"}')).body)
        for arguments in ({"amount": 5, "currency": "GBP"}, {"amount": -5, "currency": "EUR"}):
            try:
                await router.send("tool://pay", arguments)
            except heddle.RouteError as error:
                print("refused:", error)

    handlers = {"find": find, "dictionary": dictionary}
    async with heddle.Router.load(HERE / "helper.yaml", handlers=handlers) as router:
        (agent,) = router.agents
        print(f"{agent.id} may call:", ", ".join(agent.tools or ()))
        print("translated:", (await router.send("tool://translate", {"text": "thread", "to": "de"})).body)


if __name__ == "__main__":
    trio.run(main)
