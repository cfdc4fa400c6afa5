"""Numbers as Go has them: the policies of Go programs are to give the very same scores here."""


def go_round(value: float) -> int:
    """Half away from zero, as Go's math.Round; Python's own rounds half to even."""
    size = abs(value)
    whole = int(size)
    rounded = whole + 1 if size - whole >= 0.5 else whole
    return rounded if value >= 0 else -rounded


def clamp(value: float, low: float, high: float) -> float:
    return max(min(value, high), low)
