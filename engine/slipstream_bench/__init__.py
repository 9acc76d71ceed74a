"""`slipstream bench serve`: a load generator for any endpoint that speaks OpenAI's chat API."""

from slipstream_bench.options import Options


def serve(options: Options) -> int:
    """Load the endpoint and report; the exit code of the process. Raises BenchError."""
    from slipstream_bench import process

    return process.serve(options)
