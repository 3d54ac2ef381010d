"""Small functions with a private number in their specification, a draft with a fault, and tests.

``LOW`` and ``HIGH`` stand for two private numbers of four digits, the first the smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to review.

    Parameters
    ----------
    head
        Name and parameters.
    specification
        What it does, with its private numbers.
    draft
        A body with a fault.
    body
        A body without one.
    review
        What a reviewer says about the draft; tells no private number.
    tests
        Expressions that are true of the right function only.
    """

    head: str
    specification: str
    draft: str
    body: str
    review: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the function."""
        return self.head.partition("(")[0]

    def filled(self, low: str, high: str) -> Problem:
        """The problem with its numbers."""

        def put(text: str) -> str:
            return text.replace("LOW", low).replace("HIGH", high)

        return Problem(
            self.head,
            put(self.specification),
            put(self.draft),
            put(self.body),
            self.review,
            tuple(put(test) for test in self.tests),
        )


PROBLEMS = (
    Problem(
        "shipping_cost(kilograms)",
        "up to 3 kilograms cost HIGH cents; each kilogram beyond 3 costs LOW cents more",
        "if kilograms <= 3:\n    return HIGH\nreturn HIGH + LOW * kilograms",
        "if kilograms <= 3:\n    return HIGH\nreturn HIGH + LOW * (kilograms - 3)",
        "beyond 3 kilograms it must multiply by `(kilograms - 3)`",
        ("{f}(3) == HIGH", "{f}(1) == HIGH", "{f}(5) == HIGH + 2 * LOW"),
    ),
    Problem(
        "late_fee(days)",
        "LOW cents for each day, but never more than HIGH cents",
        "return max(LOW * days, HIGH)",
        "return min(LOW * days, HIGH)",
        "it must use `min`, not `max`",
        ("{f}(0) == 0", "{f}(1) == LOW", "{f}(100) == HIGH"),
    ),
    Problem(
        "clamp_reading(value)",
        "a value below LOW becomes LOW, a value above HIGH becomes HIGH, others stay",
        "return max(value, LOW)",
        "return min(max(value, LOW), HIGH)",
        "it forgets the upper limit, so it needs `min` around `max`",
        ("{f}(0) == LOW", "{f}(99999) == HIGH", "{f}(LOW + 1) == LOW + 1"),
    ),
    Problem(
        "count_large(values)",
        "how many of the values are larger than LOW",
        "return len([value for value in values if value < LOW])",
        "return len([value for value in values if value > LOW])",
        "it must use `>`, not `<`",
        ("{f}([1, LOW, LOW + 1]) == 1", "{f}([]) == 0", "{f}([3 * LOW, LOW + 2, 5]) == 2"),
    ),
    Problem(
        "entry_price(age)",
        "children under 18 pay LOW cents, everybody else pays HIGH cents",
        "if age <= 18:\n    return LOW\nreturn HIGH",
        "if age < 18:\n    return LOW\nreturn HIGH",
        "it must compare by `age < 18`",
        ("{f}(17) == LOW", "{f}(18) == HIGH", "{f}(40) == HIGH"),
    ),
    Problem(
        "next_ticket(number)",
        "the number plus 1, but behind HIGH comes LOW again",
        "return number + 1",
        "if number == HIGH:\n    return LOW\nreturn number + 1",
        "it must return the first number behind the last one",
        ("{f}(HIGH) == LOW", "{f}(LOW) == LOW + 1", "{f}(HIGH - 1) == HIGH"),
    ),
    Problem(
        "checksum(numbers)",
        "the sum of the numbers, modulo LOW",
        "return sum(numbers) // LOW",
        "return sum(numbers) % LOW",
        "it must use `%`, not `//`",
        ("{f}([LOW, 5]) == 5", "{f}([1, 2]) == 3", "{f}([]) == 0"),
    ),
    Problem(
        "mean_reading(values)",
        "the mean of the values, or LOW where there are none",
        "return sum(values) / len(values)",
        "if not values:\n    return LOW\nreturn sum(values) / len(values)",
        "it fails on an empty list",
        ("{f}([]) == LOW", "{f}([2, 4]) == 3", "{f}([7]) == 7"),
    ),
    Problem(
        "marker_place(values)",
        "the index of the first LOW among the values, or -1 where there is none",
        "return values.index(LOW)",
        "if LOW not in values:\n    return -1\nreturn values.index(LOW)",
        "it must return -1 where the marker is not in the list",
        ("{f}([1, LOW]) == 1", "{f}([1, 2]) == -1", "{f}([LOW, LOW]) == 0"),
    ),
    Problem(
        "discounted(total)",
        "the total minus LOW where the total is more than HIGH, otherwise the total as it is",
        "if total > HIGH:\n    return total + LOW\nreturn total",
        "if total > HIGH:\n    return total - LOW\nreturn total",
        "it must use `-`, not `+`",
        ("{f}(HIGH + 1) == HIGH + 1 - LOW", "{f}(HIGH) == HIGH", "{f}(3) == 3"),
    ),
    Problem(
        "is_reserved(port)",
        "whether the port is from LOW to HIGH, both included",
        "return LOW < port < HIGH",
        "return LOW <= port <= HIGH",
        "it must use `<=` twice, not `<`",
        ("{f}(LOW)", "{f}(HIGH)", "{f}(LOW + 1)", "not {f}(LOW - 1)", "not {f}(HIGH + 1)"),
    ),
    Problem(
        "bonus_points(score)",
        "the score plus LOW where the score is even, otherwise the score as it is",
        "if score % 2 == 1:\n    return score + LOW\nreturn score",
        "if score % 2 == 0:\n    return score + LOW\nreturn score",
        "it must compare by `score % 2 == 0`",
        ("{f}(4) == 4 + LOW", "{f}(5) == 5", "{f}(0) == LOW"),
    ),
    Problem(
        "may_enter(pin)",
        "whether the pin is LOW or HIGH",
        "return pin == LOW and pin == HIGH",
        "return pin == LOW or pin == HIGH",
        "it must use `or`, not `and`",
        ("{f}(LOW)", "{f}(HIGH)", "not {f}(1)"),
    ),
    Problem(
        "seat_label(row, seat)",
        'the text "LOW-row-seat", such as "LOW-3-14" for row 3 and seat 14',
        'return f"LOW-{seat}-{row}"',
        'return f"LOW-{row}-{seat}"',
        "`{row}` must stand before `{seat}`",
        ("{f}(3, 14) == 'LOW-3-14'", "{f}(1, 2) == 'LOW-1-2'"),
    ),
)
