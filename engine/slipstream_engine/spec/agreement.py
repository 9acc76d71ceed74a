"""How much of a prediction an answer repeats: what the client is told, whatever was drafted."""

from slipstream_engine.spec.draft import Key, Subject
from slipstream_engine.spec.edit import EditDrafter

_KEY: Key = ("", 0)


class Agreement:
    """Follows one answer with the cursor that drafts from predictions: 5 µs a token.

    The drafts that were verified do not matter, so the figures are the same with and without them.
    """

    def __init__(self, prediction: tuple[int, ...]) -> None:
        self._cursor = EditDrafter()
        self._cursor.start(Subject(_KEY, (), prediction))
        self._num_predicted = len(prediction)
        self._num_agreed = 0

    def add(self, token: int) -> None:
        (draft,) = self._cursor.propose([(_KEY, 1)])
        self._num_agreed += draft.tokens == (token,)
        self._cursor.commit(_KEY, [token])

    @property
    def num_accepted(self) -> int:
        """Tokens of the prediction that are in the answer."""
        return min(self._num_agreed, self._num_predicted)

    @property
    def num_rejected(self) -> int:
        return self._num_predicted - self.num_accepted
