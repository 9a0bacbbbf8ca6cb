"""The offers of waiting contenders, for group commits (:mod:`lock_manager.guard.group_commit`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NoNodeError

from lock_manager.coordinator import Offer
from lock_manager.deadline import Deadline
from lock_manager.intents import Intent
from lock_manager.zookeeper.request import OFFER
from lock_manager.zookeeper.responses import wait_for_each
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import (
    Contender,
    Mode,
    child_node,
    intents_node,
    is_contender_of,
    parse_queue,
)

_MAX_OFFERS = 64
"""Maximum number of waiting contenders whose offers a holder reads."""


def read_offers(session: Session, queue: str, holder: Contender, deadline: Deadline) -> dict[str, Mapping[str, Any]]:
    """Return the offers behind a holder by the path of the contender, in queue order.

    They end with the first contender that has none, because a holder lets no contender overtake another one of a
    different kind.

    Raises:
        KazooException, KazooTimeoutError, EnsembleRefusedError: See :meth:`Session.wait`.

    """
    contenders = parse_queue(session.wait(session.client.get_children_async(queue), deadline))
    followers = contenders[contenders.index(holder) + 1 :][:_MAX_OFFERS] if holder in contenders else []
    paths = [child_node(queue, contender.name) for contender in followers if contender.mode is Mode.EXCLUSIVE]
    data = dict(wait_for_each(session, session.client.get_async, paths, deadline))
    offers: dict[str, Mapping[str, Any]] = {}
    for contender in followers:
        path = child_node(queue, contender.name)
        if path not in data and contender.mode is Mode.EXCLUSIVE:
            # It has left the queue.
            continue
        offer = _offer_in(data[path][0]) if path in data else None
        if offer is None:
            break
        offers[path] = offer
    return offers


def _offer_in(data: bytes) -> Mapping[str, Any] | None:
    with suppress(ValueError, TypeError, KeyError):
        offer = json.loads(data)[OFFER]
        return offer if isinstance(offer, dict) else None
    return None


def is_offered(session: Session, table: str, offer: Offer, deadline: Deadline) -> bool:
    """Return whether a holder may still commit an offer that was made on a table, given by its znode.

    Raises:
        KazooException, KazooTimeoutError, EnsembleRefusedError: See :meth:`Session.wait`.

    """
    if offer.is_uncertain:
        return True
    # This session's server may lag behind the holder's.
    session.wait(session.client.sync_async(table), deadline)
    # The queue before the intents: the request that stores an intent requires that the members wait.
    names = _children(session, table, deadline)
    if any(is_contender_of(name, request) for name in names for request in offer.requests):
        return True
    folder = intents_node(table)
    paths = [child_node(folder, name) for name in _children(session, folder, deadline)]
    intents = (data for _, (data, _) in wait_for_each(session, session.client.get_async, paths, deadline))
    return _is_named(offer, intents)


def _children(session: Session, path: str, deadline: Deadline) -> list[str]:
    try:
        names: list[str] = session.wait(session.client.get_children_async(path), deadline)
    except NoNodeError:
        return []
    return names


def _is_named(offer: Offer, intents: Iterable[bytes]) -> bool:
    for data in intents:
        try:
            intent = Intent.parse(data)
        except ValueError:
            # It may name any member.
            return True
        if offer.write_id in intent.members:
            return True
    return False
