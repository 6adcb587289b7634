"""What an engine's directory says of it: one engine, or the two of an encoder-decoder. Reads configs only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.files import load_json

#: Below the directory of an encoder-decoder, as `inflight build` and the walk-throughs write it.
ENCODER, DECODER = "encoder", "decoder"

#: Where checkpoints say which token a decoder starts with, next to an engine.
_START_FILES = ("generation_config.json", "checkpoint_config.json")

#: `SpeculativeDecodingMode` as builds write it, a flag; None: written before there were modes.
_NO_DRAFTS, _EXTERNAL_DRAFTS = 1, (None, 2)

_REMEDY = "build the engine again with `inflight build --force`"


def is_encoder_decoder(directory: Path) -> bool:
    """Whether the directory holds the two engines of an encoder-decoder."""
    return all((directory / part / "config.json").is_file() for part in (ENCODER, DECODER))


@dataclass(frozen=True)
class EngineDirectory:
    """What an engine's `config.json` says of it."""

    directory: Path
    version: str | None
    vocab_size: int
    max_seq_len: int
    max_input_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int
    world_size: int
    #: Conditions of `fields.CONDITIONS` that the engine was built for.
    conditions: frozenset[str]
    #: Whether attention over prompts reads the paged cache, which chunks and block reuse need; None: an
    #: engine that does not say.
    paged_context_fmha: bool | None = None
    #: The engine that takes the prompt, where this one is a decoder's.
    encoder: Path | None = None
    #: The token that such a decoder starts with.
    decoder_start: int | None = None

    @classmethod
    def read(cls, directory: Path, encoder: Path | None = None) -> EngineDirectory:
        """Reads it. `encoder`: the engine of the encoder, where that is elsewhere.

        Errors: `UserMistake` for a file that does not belong to an engine, or for missing ranks.
        """
        start = _decoder_start(directory)
        if is_encoder_decoder(directory):
            encoder, directory = encoder or directory / ENCODER, directory / DECODER
        decoder = _read(directory)
        if decoder.vocab_size < 1:
            raise UserMistake(f"`{directory}/config.json` has no `vocab_size`", _REMEDY)
        if encoder is None:
            return decoder
        start = decoder.decoder_start if start is None else start
        if start is None:
            raise UserMistake(
                f"no file next to the engine `{directory}` says which token its decoder starts with",
                "put the checkpoint's `generation_config.json` with `decoder_start_token_id` there",
            )
        taken = _read(encoder)
        return replace(
            decoder,
            encoder=encoder,
            decoder_start=start,
            max_input_len=taken.max_input_len,
            # The worker counts prompt and output together; the prompt is not part of the decoder's sequence.
            max_seq_len=taken.max_input_len + decoder.max_seq_len,
            max_num_tokens=min(taken.max_num_tokens, decoder.max_num_tokens),
            max_batch_size=min(taken.max_batch_size, decoder.max_batch_size),
        )


def _decoder_start(directory: Path) -> int | None:
    for name in _START_FILES:
        try:
            start = _token(load_json(directory / name))
        except (OSError, ValueError, AttributeError):
            continue
        if start is not None:
            return start
    return None


def _token(config: dict[str, Any]) -> int | None:
    start = config.get("decoder_start_token_id")
    return start if isinstance(start, int) else None


def _read(directory: Path) -> EngineDirectory:
    path = directory / "config.json"
    try:
        config = load_json(path)
        model, build = config["pretrained_config"], config["build_config"]
        max_input_len = build.get("max_input_len")
        # An encoder makes no tokens: its sequence is its input.
        max_seq_len = int(build.get("max_seq_len") or max_input_len) - _reserved(model, build)
        read = EngineDirectory(
            directory=directory,
            version=config.get("version"),
            # An encoder of features has none.
            vocab_size=int(model.get("vocab_size") or 0),
            max_seq_len=max_seq_len,
            max_input_len=int(max_input_len or max_seq_len - 1),
            max_batch_size=int(build["max_batch_size"]),
            max_num_tokens=int(build.get("max_num_tokens") or max_seq_len),
            max_beam_width=int(build.get("max_beam_width") or 1),
            tokens_per_block=int((build.get("plugin_config") or {}).get("tokens_per_block") or 32),
            world_size=int((model.get("mapping") or {}).get("world_size") or 1),
            conditions=frozenset(_built_for(build)),
            paged_context_fmha=(build.get("plugin_config") or {}).get("use_paged_context_fmha"),
            decoder_start=_token(model),
        )
    except (OSError, ValueError) as error:
        raise UserMistake(f"`{path}` cannot be read: {error}", _REMEDY) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UserMistake(f"`{path}` is not an engine's: {error!r} is missing or invalid", _REMEDY) from error
    for rank in range(read.world_size):
        engine = directory / f"rank{rank}.engine"
        if not engine.is_file() or not engine.stat().st_size:
            raise UserMistake(f"the engine `{engine}` is missing or empty", _REMEDY)
    return read


def _reserved(model: dict[str, Any], build: dict[str, Any]) -> int:
    """Positions that the builder added to `max_seq_len` for tokens that are drafted and not kept."""
    if build.get("speculative_decoding_mode") == _NO_DRAFTS:
        return 0
    drafted = int(build.get("max_draft_len") or 0)
    return drafted + int(model.get("num_eagle_layers") or 0) if drafted else 0


def _built_for(build: dict[str, Any]) -> Iterator[str]:
    plugins = build.get("plugin_config") or {}
    if build.get("gather_context_logits"):
        yield "gather_context_logits"
    if build.get("gather_generation_logits"):
        yield "gather_generation_logits"
    if build.get("max_prompt_embedding_table_size"):
        yield "prompt_table"
    if plugins.get("lora_plugin"):
        yield "lora"
    # Medusa, Eagle and their like have a draft length too, and draft by themselves.
    if build.get("max_draft_len") and build.get("speculative_decoding_mode") in _EXTERNAL_DRAFTS:
        yield "draft"
    if build.get("use_mrope"):
        yield "mrope"
