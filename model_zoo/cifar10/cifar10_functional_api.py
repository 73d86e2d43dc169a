"""The model of `cifar10.model`, under the name that ElasticDL's tutorials and reports give it."""

from cifar10.model import custom_model, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]
