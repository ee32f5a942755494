"""Extra for language models: GGUF and ONNX readers, decoders, text generation and a server."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="Language models",
    services={
        "demonstrate a language model": "weft.extras.language.language_demo:demonstrate",
        "load an example language model": "weft.extras.language.example:load",
    },
)
