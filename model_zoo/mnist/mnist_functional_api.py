"""The model of `mnist.model`, under the name that ElasticDL's tutorials and reports give it."""

from mnist.model import custom_model, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]
