"""`make model` for a base on the hub: from its cache without network, and everything that can go wrong."""

import errno
import json
import os
from dataclasses import replace

import pytest
import stand_ins

from labs_lib.errors import BaseModelError, StorageError
from labs_lib.models.base import load_base
from labs_lib.models.chat import pad_id
from labs_lib.storage import sha256_file, sha256_tree
from labs_lib.tools import model as command
from labs_lib.tools.bases import hub
from labs_lib.tools.bases.fetch import fetch_base

SLUG = "Qwen--Qwen2.5-0.5B-Instruct"


@pytest.fixture(scope="module")
def qwen():
    return stand_ins.small_qwen()


@pytest.fixture
def profile(qwen):
    return stand_ins.profile_for("qwen2.5-0.5b", qwen)


@pytest.fixture
def snapshot(cache, profile, qwen):
    return stand_ins.write_snapshot(cache, profile.base, qwen)


def with_base(profile, **changes):
    return replace(profile, base=replace(profile.base, **changes))


def test_a_snapshot_in_the_cache_needs_no_network(snapshot, profile, root, left):
    pinned = with_base(profile, sha256=sha256_file(snapshot / "model.safetensors"))
    assert fetch_base(pinned) is True
    folder = root / "assets" / "bases" / SLUG
    assert left() == [SLUG] and sorted(path.name for path in folder.iterdir()) == sorted(hub.FILES)
    assert not any(path.is_symlink() for path in folder.iterdir())
    loaded = load_base(pinned)
    assert pad_id(loaded.tokenizer) != loaded.tokenizer.eos_token_id


def test_a_second_command_only_checks_and_a_failing_fetch_destroys_nothing(
    snapshot, profile, root, monkeypatch, capsys
):
    monkeypatch.setattr(command, "load_profile", lambda name: profile)
    assert command.main([]) == 0
    assert "(fetched now): Qwen2ForCausalLM" in capsys.readouterr().out
    before = sha256_tree(root / "assets" / "bases" / SLUG)
    monkeypatch.setattr(hub, "snapshot_download", None)
    assert command.main([]) == 0
    assert "fetched" not in capsys.readouterr().out
    assert sha256_tree(root / "assets" / "bases" / SLUG) == before


def test_offline_without_a_cache_is_one_sentence(profile, left):
    with pytest.raises(
        BaseModelError, match=r"Qwen/Qwen2\.5-0\.5B-Instruct could not be downloaded .*HF_HOME"
    ) as caught:
        fetch_base(profile)
    assert "offline mode is enabled" in str(caught.value) and str(caught.value).count(". ") <= 1
    assert left() == []


def test_another_revision_in_the_cache_does_not_stand_in(snapshot, profile, left):
    with pytest.raises(BaseModelError, match="could not be downloaded"):
        fetch_base(with_base(profile, revision="0" * 40))
    assert left() == []


@pytest.mark.parametrize("name", hub.FILES)
def test_an_incomplete_cache_is_completed_or_refused(name, snapshot, profile, left, monkeypatch):
    """Without network the rest cannot be had; a hub that has no such file either is another repository."""
    os.remove(snapshot / name)
    asked = []

    def download(*arguments, local_files_only=False, **options):
        asked.append(options.get("allow_patterns"))
        return str(snapshot)

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(BaseModelError, match=rf"7ae557604a\w+ has no {name}"):
        fetch_base(profile)
    assert asked == [None, list(hub.FILES)] and left() == []


def test_a_link_to_a_blob_that_is_gone_counts_as_missing(snapshot, profile, left):
    (snapshot / "model.safetensors").resolve().unlink()
    assert hub.cached_snapshot(profile.base) is None and hub.missing_files(snapshot) == ["model.safetensors"]


@pytest.mark.parametrize(
    "error",
    [Exception("403 Forbidden"), RuntimeError("403 Forbidden"), ConnectionError("403 Forbidden")],
    ids=["network-library", "transfer-library", "connection"],
)
def test_every_kind_of_failing_network_is_the_same_sentence(error, profile, left, monkeypatch):
    def download(*arguments, local_files_only=False, **options):
        if local_files_only:
            raise hub.LocalEntryNotFoundError("not here")
        raise error

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(BaseModelError, match=r"could not be downloaded \(403 Forbidden\): connect"):
        fetch_base(profile)
    assert left() == []


@pytest.mark.parametrize("place", ["download", "copy"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(place, snapshot, profile, left, monkeypatch):
    def full(*arguments, local_files_only=False, **options):
        if local_files_only:
            raise hub.LocalEntryNotFoundError("not here")
        raise OSError(errno.ENOSPC, "No space left on device")

    target = (hub, "snapshot_download") if place == "download" else (hub.shutil, "copyfile")
    monkeypatch.setattr(*target, full)
    with pytest.raises(StorageError, match="disk is full"):
        fetch_base(profile)
    assert left() == []


def test_an_untied_model_is_refused(cache, left):
    untied = stand_ins.small_qwen(tied=False)
    profile = stand_ins.profile_for("qwen2.5-0.5b", untied)
    stand_ins.write_snapshot(cache, profile.base, untied)
    with pytest.raises(BaseModelError, match="not tied"):
        fetch_base(profile)
    assert left() == []


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sha256": "0" * 64}, r"was not kept\. .*SHA-256"),
        ({"architecture": "LlamaForCausalLM"}, r"was not kept\. .*Qwen2ForCausalLM.*LlamaForCausalLM"),
        ({"parameters": 7}, r"was not kept\. .*unique parameters"),
    ],
    ids=["hash", "architecture", "parameters"],
)
def test_another_model_is_refused_and_leaves_nothing(changes, named, snapshot, profile, left):
    with pytest.raises(BaseModelError, match=named):
        fetch_base(with_base(profile, **changes))
    assert left() == []


def _rewrite(snapshot, name, change):
    """Replace a file of the snapshot, not the blob that others may share."""
    data = (snapshot / name).read_bytes()
    os.remove(snapshot / name)
    (snapshot / name).write_bytes(change(data))


def _more_layers(data):
    config = json.loads(data)
    return json.dumps({**config, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}).encode()


def _without_template(data):
    return json.dumps({key: value for key, value in json.loads(data).items() if key != "chat_template"}).encode()


@pytest.mark.parametrize(
    "name, change, parameters, named",
    [
        ("config.json", lambda data: data[:-20], 0, "cannot be read as a model"),
        ("tokenizer.json", lambda data: b"{}", 0, "cannot be read as a model"),
        ("model.safetensors", lambda data: data[:-20], 0, "cannot be read as a model"),
        ("config.json", _more_layers, 7_808, r"does not fit config\.json: 12 missing tensors, model\.layers\.1"),
        (
            "config.json",
            lambda data: data.replace(b'"intermediate_size": 48', b'"intermediate_size": 47'),
            -96,
            "mismatched",
        ),
        ("tokenizer_config.json", _without_template, 0, "no chat_template"),
    ],
    ids=["config", "tokenizer", "weights", "layers", "shapes", "template"],
)
def test_damaged_files_are_refused_where_no_hash_is_pinned(name, change, parameters, named, snapshot, profile, left):
    """Above all a layer without weights, which transformers would draw at random."""
    _rewrite(snapshot, name, change)
    with pytest.raises(BaseModelError, match=named):
        fetch_base(with_base(profile, parameters=profile.base.parameters + parameters))
    assert left() == []
