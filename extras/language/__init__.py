"""Extra for language models: GGUF and ONNX readers, decoders, text generation and a server."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    title="Language models",
    commands=("weft.extras.language.language_commands", "weft.extras.language.serve_command"),
    services={"demonstrate a language model": "weft.extras.language.language_demo:demonstrate"},
)
