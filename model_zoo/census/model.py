"""Wide & deep on UCI Census-Income (KDD): 40 columns, declared one by one.

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.
"""

import keras
import tensorflow as tf

from elasticdl.preprocessing import statistics
from elasticdl.preprocessing.tabular import Bucket, Category, Cross, Label, Number, Table

DIM = 8
HIDDEN = (64, 32)
NUMBERS = {  # name -> where buckets begin, unless --statistics says so
    "age": [5, 16, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75],
    "wage_per_hour": [1, 500, 800, 1200, 2000],
    "capital_gains": [1, 2000, 4000, 6000, 8000, 15_000],
    "capital_losses": [1, 1500, 1800, 2000, 2300],
    "dividends_from_stocks": [1, 50, 200, 1000, 5000, 20_000],
    "num_persons_worked_for_employer": [1, 2, 3, 4, 5, 6],
    "weeks_worked_in_year": [1, 13, 26, 39, 48, 52],
}
CATEGORIES = (
    *("class_of_worker", "industry_code", "occupation_code", "education", "enrolled_in_education"),
    *("marital_status", "major_industry", "major_occupation", "race", "hispanic_origin", "sex"),
    *("labor_union", "reason_for_unemployment", "employment_status", "tax_filer_status"),
    *("previous_region", "previous_state", "household_and_family", "household_summary"),
    *("migration_msa", "migration_region", "migration_within_region", "same_house_1_year_ago"),
    *("migration_sunbelt", "family_members_under_18", "country_of_father", "country_of_mother"),
    *("country_of_birth", "citizenship", "self_employed", "veterans_questionnaire"),
    *("veterans_benefits", "year"),
)

TABLE = Table(
    [
        *(Number(name, log=True, stddev=3.0) for name in NUMBERS),
        *(
            Bucket(n, statistics.get_bucket_boundaries(n, default))
            for n, default in NUMBERS.items()
        ),
        *(Category(name, 200) for name in CATEGORIES),
        Cross(["education", "occupation_code"], 10_000),
        Cross(["age", "occupation_code"], 10_000),
        Cross(["age", "education", "sex"], 100_000),
        Cross(["industry_code", "occupation_code"], 10_000),
        Cross(["tax_filer_status", "household_summary"], 1000),
        Cross(["dividends_from_stocks", "capital_gains"], 1000),
        Cross(["weeks_worked_in_year", "occupation_code"], 10_000),
    ],
    label=Label("income", positive="50000+."),
)

feed = TABLE.feed


def forward():
    """Return the model: columns of a person -> logit of the higher income."""
    inputs = TABLE.inputs()
    columns = TABLE.encode(inputs)
    hidden = columns.flat(DIM)
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
        hidden = keras.layers.Dropout(0.2)(hidden)
    return keras.Model(inputs, columns.linear() + keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.1):
    """Return Adagrad: rare crosses begin with a large step and keep it."""
    return keras.optimizers.Adagrad(lr, initial_accumulator_value=0.01)


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
    }
