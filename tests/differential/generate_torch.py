"""Draws model files over what PyTorch offers. Each is a text that a person can save and run."""

from dataclasses import dataclass

from hypothesis import strategies as st

NUM_IDS, WIDTH, CLASSES = 12, 5, 3

_HEAD = """\
import functools

import torch
from torch import nn
from torch.nn import functional as F

from elasticdl.layers.torch import Embedding, EmbeddingBag
from elasticdl.optimizers.torch import clip_grad_norm, clip_grad_value

MOVED = {moved}  # whether tables are in the store
if not MOVED:
    Embedding, EmbeddingBag = nn.Embedding, nn.EmbeddingBag
"""

# Name: (lines of __init__, lines of forward; h has `size` columns before and after).
BLOCKS = {
    "linear": ("self.{n} = nn.Linear({size}, {size})", "h = torch.tanh(self.{n}(h))"),
    "nested": (
        "self.{n} = nn.Sequential(nn.Linear({size}, 6), nn.Sequential(nn.ReLU(), "
        "nn.Linear(6, {size})), nn.Dropout(0.0))",
        "h = h + self.{n}(h)",
    ),
    "layer norm": ("self.{n} = nn.LayerNorm({size})", "h = self.{n}(h)"),
    "batch norm": ("self.{n} = nn.BatchNorm1d({size}, momentum=0.3)", "h = self.{n}(h)"),
    "mean norm": ("self.{n} = nn.BatchNorm1d({size}, momentum=None)", "h = self.{n}(h)"),
    "shared": (
        "self.{n} = nn.Linear({size}, {size})\nself.{n}_again = self.{n}",
        "h = torch.tanh(self.{n}_again(torch.tanh(self.{n}(h))))",
    ),
    "tied": (
        "self.{n} = nn.Linear({size}, {size})\nself.{n}_b = nn.Linear({size}, {size})\n"
        "self.{n}_b.weight = self.{n}.weight",
        "h = torch.tanh(self.{n}_b(torch.relu(self.{n}(h))))",
    ),
    "spectral": (
        "self.{n} = nn.utils.parametrizations.spectral_norm(nn.Linear({size}, {size}))",
        "h = torch.tanh(self.{n}(h))",
    ),
    "old spectral": (
        "self.{n} = nn.utils.spectral_norm(nn.Linear({size}, {size}))",
        "h = torch.tanh(self.{n}(h))",
    ),
    "weight norm": (
        "self.{n} = nn.utils.parametrizations.weight_norm(nn.Linear({size}, {size}))",
        "h = torch.tanh(self.{n}(h))",
    ),
    "frozen": (
        "self.{n} = nn.Linear({size}, {size}).requires_grad_(False)",
        "h = h + torch.tanh(self.{n}(h))",
    ),
    "experts": (
        "self.{n} = nn.ModuleList(nn.Linear({size}, {size}) for _ in range(3))",
        "which = features['kind'].remainder(3)\nout = torch.zeros_like(h)\n"
        "for number, expert in enumerate(self.{n}):\n"
        "    mine = which == number\n"
        "    if mine.any():\n"
        "        out[mine] = torch.tanh(expert(h[mine]))\nh = h + out",
    ),
    "teacher": (
        "self.{n} = nn.Linear({size}, {size})\n"
        "self.{n}_slow = nn.Linear({size}, {size}).requires_grad_(False)\n"
        "self.{n}_slow.load_state_dict(self.{n}.state_dict())",
        "with torch.no_grad():\n"
        "    for slow, fast in zip(self.{n}_slow.parameters(), self.{n}.parameters()):\n"
        "        if self.training:\n"
        "            slow.mul_(0.9).add_(fast, alpha=0.1)\n"
        "h = torch.tanh(self.{n}(h) - 0.5 * self.{n}_slow(h))",
    ),
    "counter": (
        'self.register_buffer("{n}", torch.zeros(()))',
        "if self.training:\n    self.{n} += 1\nh = h / (1 + 0.1 * self.{n})",
    ),
    "shown": ("self.{n} = None", "self.{n} = h.detach()"),
    "gru": (
        "self.{n} = nn.GRU(1, 3, batch_first=True)\nself.{n}_out = nn.Linear(3, {size})",
        "h = h + self.{n}_out(self.{n}(features['x'].unsqueeze(2))[0][:, -1])",
    ),
    "attention": (
        "self.{n} = nn.MultiheadAttention(4, 2, batch_first=True)\n"
        "self.{n}_out = nn.Linear(8, {size})",
        "e = self.ids(features['ids'])\n"
        "h = h + self.{n}_out(self.{n}(e, e, e, need_weights=False)[0].flatten(1))",
    ),
    "python counter": ("self.{n} = 0", "self.{n} += 1\nh = h / (1 + 0.1 * self.{n})"),
}
REFUSED = {"python counter"}
# What two workers with halves of a minibatch compute otherwise than one with the whole.
_OF_THE_WHOLE = {"batch norm", "mean norm", "counter"}

REGRESSION = {
    "function": (
        "def loss(labels, predictions):\n    return F.mse_loss(predictions, labels)",
        True,
    ),
    "module": ("loss = nn.MSELoss()", True),
    "huber": ("loss = nn.HuberLoss(delta=0.5)", True),
    "sum": ('loss = nn.SmoothL1Loss(reduction="sum")', False),
    "partial": ("loss = functools.partial(F.smooth_l1_loss, beta=0.5)", True),
    "lambda": ("loss = lambda y, p: (y - p).square().mean() + 0.01 * p.abs().mean()", True),
    "weighted": (
        "def loss(labels, predictions):\n"
        "    each = F.l1_loss(predictions, labels, reduction='none')\n"
        "    return (each * (1 + labels.abs())).mean()",
        True,
    ),
    "moving scale": (
        "class Scale(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        '        self.register_buffer("mean", torch.ones(()))\n\n'
        "    def forward(self, predictions, labels):\n"
        "        error = F.mse_loss(predictions, labels)\n"
        "        self.mean.mul_(0.9).add_(error.detach(), alpha=0.1)\n"
        "        return error / self.mean\n\n\n"
        "loss = Scale()",
        False,
    ),
}
CLASSIFICATION = {
    "function": ("loss = F.cross_entropy", True),
    "module": ("loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))", False),
    "smoothing": ("loss = functools.partial(F.cross_entropy, label_smoothing=0.1)", True),
    "closed": (
        "criterion = nn.CrossEntropyLoss()\n\n\n"
        "def loss(labels, predictions):\n    return criterion(predictions, labels)",
        True,
    ),
    "nll": ("def loss(y, p):\n    return F.nll_loss(F.log_softmax(p, 1), y)", True),
}
OPTIMIZERS = [
    "torch.optim.SGD({p}, lr=0.05)",
    "torch.optim.SGD({p}, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "torch.optim.SGD({p}, lr=0.02, momentum=0.9, dampening=0.3)",
    "torch.optim.Adam({p}, lr=0.01, eps=1e-3, betas=(0.8, 0.95))",
    "torch.optim.AdamW({p}, lr=0.01, eps=1e-3, weight_decay=0.1, amsgrad=True)",
    "torch.optim.Adagrad({p}, lr=0.05, initial_accumulator_value=0.1, lr_decay=0.01)",
    "torch.optim.RMSprop({p}, lr=0.005, eps=1e-3, momentum=0.5)",
]
GROUPS = {
    "none": "parameters",
    "rates": '[{"params": rest}, {"params": flat, "lr": 0.003}]',
    "decays": '[{"params": rest, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]',
    "both": '[{"params": rest, "lr": 0.02, "weight_decay": 0.05}, {"params": flat}]',
}
SCHEDULES = [
    "made",
    "torch.optim.lr_scheduler.StepLR(made, step_size=3, gamma=0.5)",
    "torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=20)",
    "torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, (step + 1) / 4))",
]
CLIPS = ["made", "clip_grad_norm(made, 0.5)", "clip_grad_value(made, 0.05)"]


@dataclass(frozen=True)
class File:
    """A model file.

    text: with a place for `moved`. is_halved: two halves of a minibatch make together what the
    whole makes. refused: what the job has to refuse, or "".
    """

    text: str
    is_halved: bool
    refused: str

    def with_tables(self, moved):
        """Return the text, with tables in the store or in the model."""
        return self.text.replace("{moved}", str(moved))


def _indented(text, by):
    return "\n".join(" " * by + line for line in text.split("\n"))


@st.composite
def files(draw):
    """Draw a file."""
    names = draw(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4))
    if REFUSED & set(names) and not draw(st.booleans()):  # most files are to be trained
        names = [name for name in names if name not in REFUSED] or ["linear"]
    classes = draw(st.booleans())
    losses = CLASSIFICATION if classes else REGRESSION
    loss, is_mean = losses[draw(st.sampled_from(sorted(losses)))]
    padding = draw(st.sampled_from(["", ", padding_idx=0"]))
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    size = draw(st.sampled_from([4, 7]))
    init, forward = [], []
    for number, name in enumerate(names):
        made, used = BLOCKS[name]
        init.append(made.format(n=f"block_{number}", size=size))
        forward.append(used.format(n=f"block_{number}", size=size))
    bag = draw(st.booleans())
    given = ["self.ids(features['ids']).flatten(1)", "features['x']"]
    if bag:
        init.insert(0, f'self.bag = EmbeddingBag({NUM_IDS}, 3, mode="{mode}")')
        given.append("self.bag(features['ids'])")
    columns = 8 + WIDTH + (3 if bag else 0)
    init[:0] = [f"self.ids = Embedding({NUM_IDS}, 4{padding})"]
    init.append(f"self.begin = nn.Linear({columns}, {size})")
    init.append(f"self.out = nn.Linear({size}, {CLASSES if classes else 1})")
    forward.insert(0, f"h = torch.tanh(self.begin(torch.cat([{', '.join(given)}], 1)))")
    forward.append("return self.out(h)")
    rule, groups = draw(st.sampled_from(OPTIMIZERS)), draw(st.sampled_from(sorted(GROUPS)))
    schedule, clip = draw(st.sampled_from(SCHEDULES)), draw(st.sampled_from(CLIPS))
    y = "kind" if classes else "y"
    text = "\n".join([
        _HEAD, "\nclass Net(nn.Module):", "    def __init__(self):", "        super().__init__()",
        *(_indented(part, 8) for part in init), "",
        "    def forward(self, features):", *(_indented(part, 8) for part in forward),
        "\n\ndef forward():\n    return Net()\n\n", loss,
        "\n\ndef optimizer(parameters):",
        "    parameters = list(parameters)",
        "    flat = [p for p in parameters if p.dim() == 1]",
        "    rest = [p for p in parameters if p.dim() != 1]",
        f"    made = {rule.format(p=GROUPS[groups])}",
        f"    made = {clip}", f"    return {schedule}",
        "\n\ndef feed(dataset, mode, metadata):", "    columns = dataset.columns",
        "    features = {name: columns[name] for name in ('ids', 'x', 'kind')}",
        f"    return features, columns[{y!r}]",
        "\n\ndef eval_metrics_fn():",
        "    return {'mean': lambda labels, predictions: predictions.float().mean(1)}", "",
    ])  # fmt: skip
    refused = next((f"block_{k}" for k, name in enumerate(names) if name in REFUSED), "")
    return File(text, is_mean and not _OF_THE_WHOLE & set(names), refused)
