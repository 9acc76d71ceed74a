"""When work may begin: only after a list of everything that was begun while this process led."""

from slipstream_operator import kinds
from slipstream_operator.listing import Listing

EVERYTHING = frozenset(kinds.WATCHED)


def complete() -> Listing:
    listing = Listing(kinds.WATCHED)
    assert listing.take() == EVERYTHING
    listing.succeeded()
    assert listing.is_complete
    assert listing.is_current
    return listing


def test_a_list_that_was_begun_before_leadership_does_not_let_work_begin() -> None:
    listing = complete()
    listing.mark(kinds.POD)
    assert listing.take() == {kinds.POD}
    listing.mark_all()  # this process leads from here on
    listing.succeeded()
    assert not listing.is_current
    assert listing.take() == EVERYTHING
    listing.succeeded()
    assert listing.is_current


def test_leadership_during_the_very_first_list_asks_for_another_one() -> None:
    listing = Listing(kinds.WATCHED)
    listing.take()
    listing.mark_all()
    listing.succeeded()
    assert listing.is_complete
    assert not listing.is_current


def test_a_list_that_failed_is_taken_again_with_what_came_meanwhile() -> None:
    listing = complete()
    listing.mark(kinds.POD)
    taken = listing.take()
    listing.mark(kinds.MODEL)
    listing.failed(taken)
    assert listing.take() == {kinds.POD, kinds.MODEL}


def test_until_the_first_list_is_complete_everything_is_listed() -> None:
    listing = Listing(kinds.WATCHED)
    listing.failed(listing.take())
    assert not listing.is_complete
    listing.mark(kinds.POD)
    assert listing.take() == EVERYTHING
