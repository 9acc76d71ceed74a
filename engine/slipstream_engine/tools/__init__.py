"""Tool calls and thinking in the text of an answer: formats, the parser, arguments. Pure."""
