"""The end of a pretraining run: the model folder, the curve, the account."""

from __future__ import annotations

import logging
from typing import Any

from protlat.data.dataset import MaskedDataset
from protlat.files import format_bytes
from protlat.models.language_model import LanguageModel
from protlat.plotting import can_plot
from protlat.reporting import format_seconds, peak_memory_bytes
from protlat.training.loop import Loop
from protlat.training.metrics import METRICS_FILE, read_metrics
from protlat.training.report import FLOOR_WORDS, bits, floor_names, loss_curve, model_card
from protlat.training.run_folder import RunFolder, command_line
from protlat.training.state import gather_weights

log = logging.getLogger(__name__)


def write_model(folder: RunFolder, model: LanguageModel, loop: Loop, config_yaml: str) -> None:
    """Write ``model/`` with its card, and the loss curve; every rank must call.

    Parameters
    ----------
    folder : RunFolder
    model : LanguageModel
        Takes the trained float32 master weights.
    loop : Loop
        After its run.
    config_yaml : str
        All settings, for the card.
    """
    parts, state = loop.parts, loop.state
    weights = gather_weights(parts.engine, parts.process.is_first)
    if not parts.process.is_first:
        return
    model.load_state_dict(weights, strict=False)
    run_facts = folder.facts()
    facts = {
        "causal": model.config.causal,
        "name": folder.path.resolve().name,
        "n_parameters": model.n_parameters(),
        "weights_bytes": 4 * model.n_parameters(),
        **run_facts["data"],
        "versions": run_facts["versions"],
        "command": command_line(),
        "step": state.step,
        "n_tokens": state.n_tokens,
        "epochs": state.position.epoch + state.position.batch / parts.plan.n_batches(state.position.epoch),
        "elapsed_s": state.elapsed_s,
        "world_size": parts.process.world_size,
        "dtype": str(parts.process.dtype).removeprefix("torch."),
        "config_yaml": config_yaml,
    }
    floors = None if parts.floors is None else parts.floors["whole"]
    model.save_pretrained(folder.path / "model", model_card(facts, loop.final_scores, floors))
    if can_plot():
        loss_curve(folder.path / "loss_curve.png", read_metrics(folder.path / METRICS_FILE))
    else:
        log.warning("no loss curve drawn: matplotlib is not installed (pip install 'protlat[plot]')")


def account_of(folder: RunFolder, loop: Loop, n_parameters: int) -> dict[str, Any]:
    """Closing account of a run, by name."""
    state, scores, dataset = loop.state, loop.final_scores, loop.parts.dataset
    account: dict[str, Any] = {
        "steps": state.step,
        "tokens": state.n_tokens,
        ("masked residues" if isinstance(dataset, MaskedDataset) else "tokens predicted"): state.n_predicted,
        "sequences an epoch": len(dataset.source),
        "of them cropped": dataset.n_cropped,
        "parameters": n_parameters,
    }
    if scores is not None and scores["perplexity"] is not None:
        account["validation perplexity"] = f"{scores['perplexity']:.3f}"
        account["validation accuracy"] = f"{100 * scores['accuracy']:.2f} %"
        for name, value in bits(scores).items():
            account[f"validation {name}"] = f"{value:.4f}"
        for floor in floor_names(scores):
            account[f"floors: {FLOOR_WORDS[floor]}"] = f"{scores[f'floor_{floor}']:.3f}" + "".join(
                f" ({value:.4f} {name})" for name, value in bits(scores, f"floor_{floor}_").items()
            )
    account["time"] = format_seconds(state.elapsed_s)
    account["peak memory"] = format_bytes(peak_memory_bytes())
    account["run folder"] = str(folder.path)
    if loop.stopped_by is None:
        account["model"] = str(folder.path / "model")
        if can_plot():
            account["loss curve"] = str(folder.path / "loss_curve.png")
    return account
