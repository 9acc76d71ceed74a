"""What can go wrong before a figure exists. A failed request is no error: it is a record.

BenchError               the benchmark cannot be made; the message says what to do
├── OptionError          an option, or two together, make no sense; `option` names it
├── EndpointError        the endpoint cannot be used: unreachable, refuses the key, lacks the model
└── WorkloadError        the requests cannot be made: a package, a dataset
"""


class BenchError(Exception):
    pass


class OptionError(BenchError):
    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class EndpointError(BenchError):
    pass


class WorkloadError(BenchError):
    pass
