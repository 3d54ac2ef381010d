"""Mode ``continue``: whole contexts through every profile, on texts of several kinds."""

from __future__ import annotations

from statistics import fmean

from kvbaton.bench.fidelity.session import Row, Session, Task, loss_json
from kvbaton.bench.kl import coded_cache
from kvbaton.bench.texts import Text
from kvbaton.types import JSON


def tasks(session: Session) -> list[Task]:
    """One measurement per length, text and profile; texts that are too short are left out."""
    return [
        _task(session, text, tokens, name)
        for tokens in session.scope.tokens
        for text in session.texts(tokens)
        for name in session.scope.profiles
    ]


def _task(session: Session, text: Text, tokens: int, name: str) -> Task:
    def run() -> JSON:
        reference = session.reference(text, tokens)
        through = coded_cache(
            session.engine,
            reference.cache,
            session.plan(name),
            tokens=tokens,
            room=session.scope.positions,
        )
        loss = reference.loss(through.cache)
        return loss_json(loss, bits_per_element=through.bits_per_element)

    key = f"continue/{tokens}/{text.name}/{session.plan_key(name)}"
    return Task(key, f"{name} on {text.name}, {tokens} tokens", run)


def rows(session: Session) -> list[JSON]:
    """One row per length and profile."""
    found = []
    for tokens in session.scope.tokens:
        for name in session.scope.profiles:
            texts = session.texts(tokens)
            losses = session.found([_task(session, text, tokens, name) for text in texts])
            if losses:
                found.append(_row(session, name, tokens, losses))
    return found


def _row(session: Session, name: str, tokens: int, losses: list[JSON]) -> JSON:
    return Row(
        name,
        "continue",
        tokens,
        session.engine.layout.dtype,
        bits_per_element=fmean(loss["bits_per_element"] for loss in losses),
        losses=losses,
        more={"calibrated": session.calibrated(name), "by_text": _by_text(losses)},
    ).to_json()


def _by_text(losses: list[JSON]) -> JSON:
    return {loss["text"]: loss["kl_mean"] for loss in losses}
