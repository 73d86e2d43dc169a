//! Says how a model differs from the one that was declared before.

use std::collections::BTreeMap;

use super::{Clip, ConstraintSpec, ModelSpec, OptimizerSpec, TableSpec, VariableSpec};

impl ModelSpec {
    /// Say how `self` differs from what was declared before, or `None` if they are equal.
    pub(crate) fn difference(&self, declared: &Self) -> Option<String> {
        if self == declared {
            return None;
        }
        let said = table_difference(&self.tables, &declared.tables)
            .or_else(|| variable_difference("dense", &self.dense, &declared.dense))
            .or_else(|| variable_difference("state", &self.state, &declared.state))
            .or_else(|| optimizer_difference("the model", &self.optimizer, &declared.optimizer))
            .or_else(|| clip_difference(self.clip, declared.clip))
            .unwrap_or_else(|| {
                format!(
                    "the seed is {} here, {} was declared",
                    self.seed, declared.seed
                )
            });
        Some(said)
    }
}

impl OptimizerSpec {
    fn described(&self) -> String {
        let Some(program) = &self.program else {
            return described(&self.kind, &self.params);
        };
        let slots: Vec<_> = program.slots.iter().map(|(name, _)| &**name).collect();
        let operations: Vec<_> = program.nodes.iter().map(|node| &*node.op).collect();
        format!(
            "of its own (slots {}; {})",
            slots.join(", "),
            operations.join(" ")
        )
    }
}

fn table_difference(here: &[TableSpec], declared: &[TableSpec]) -> Option<String> {
    if here.len() != declared.len() {
        return Some(format!(
            "the model has {} tables here, {} were declared",
            here.len(),
            declared.len()
        ));
    }
    here.iter()
        .zip(declared)
        .enumerate()
        .find_map(|(i, (a, b))| {
            if a.name != b.name {
                return Some(format!(
                    "table {i} is '{}' here, '{}' was declared",
                    a.name, b.name
                ));
            }
            let mut facts = facts(a).into_iter().zip(facts(b));
            let ((what, here), (_, declared)) = facts.find(|(a, b)| a != b)?;
            let name = &a.name;
            Some(format!(
                "table '{name}' has {what}{here} here, {declared} was declared"
            ))
        })
}

/// Return all that is declared of a table beside its name, in words.
fn facts(table: &TableSpec) -> Vec<(&'static str, String)> {
    let input_dim = table.input_dim.map(|n| n.to_string());
    let statistics = table
        .statistics
        .map(|s| format!("statistics that decay by {} in {} steps", s.decay, s.steps));
    let initializer = &table.initializer;
    vec![
        ("dim ", table.dim.to_string()),
        (
            "initializer ",
            described(&initializer.kind, &initializer.params),
        ),
        ("input_dim ", input_dim.unwrap_or("no limit".to_owned())),
        ("wire_dtype ", format!("{:?}", table.wire_dtype)),
        ("", life_cycle(table)),
        ("", statistics.unwrap_or("no statistics".to_owned())),
        ("", constrained(table.constraint.as_ref())),
        ("keep_names=", table.keep_names.to_string()),
        ("trainable=", table.trainable.to_string()),
        ("given_rows=", table.given_rows.to_string()),
        ("", format!("{} times the learning rate", table.rate)),
        ("optimizer ", table.optimizer.described()),
    ]
}

fn variable_difference(
    which: &str,
    here: &[VariableSpec],
    declared: &[VariableSpec],
) -> Option<String> {
    if here.len() != declared.len() {
        return Some(format!(
            "the model has {} {which} variables here, {} were declared",
            here.len(),
            declared.len()
        ));
    }
    let (a, b) = here.iter().zip(declared).find(|(a, b)| a != b)?;
    let same_place = (&a.name, &a.shape, a.offset) == (&b.name, &b.shape, b.offset);
    Some(if same_place {
        format!(
            "{which} variable '{}' has {} here, {} was declared",
            a.name,
            treated(a),
            treated(b)
        )
    } else if a.name == b.name {
        format!(
            "{which} variable '{}' has shape {:?} at {} here, {:?} at {} was declared",
            a.name, a.shape, a.offset, b.shape, b.offset
        )
    } else {
        format!(
            "{which} variable '{}' here was declared as '{}'",
            a.name, b.name
        )
    })
}

fn optimizer_difference(
    whose: &str,
    here: &OptimizerSpec,
    declared: &OptimizerSpec,
) -> Option<String> {
    (here != declared).then(|| {
        format!(
            "{whose} has optimizer {} here, {} was declared",
            here.described(),
            declared.described()
        )
    })
}

fn clip_difference(here: Option<Clip>, declared: Option<Clip>) -> Option<String> {
    let words = |clip: Option<Clip>| match clip {
        None => "not clipped".to_owned(),
        Some(clip) => format!("clipped by {clip:?}"),
    };
    (here != declared).then(|| {
        format!(
            "gradients are {} here, {} was declared",
            words(here),
            words(declared)
        )
    })
}

fn constrained(constraint: Option<&ConstraintSpec>) -> String {
    constraint.map_or("no constraint".to_owned(), |c| {
        format!("constraint {}", described(&c.kind, &c.params))
    })
}

fn treated(variable: &VariableSpec) -> String {
    let decay = if variable.decays { "the" } else { "no" };
    let mut said = format!(
        "trainable={}, momentum={}, {decay} weight decay and {}",
        variable.trainable,
        variable.momentum,
        constrained(variable.constraint.as_ref())
    );
    if let Some(own) = &variable.optimizer {
        said += &format!(", optimizer {}", own.described());
    }
    if variable.rate != 1.0 {
        said += &format!(", {} times the learning rate", variable.rate);
    }
    said
}

fn life_cycle(table: &TableSpec) -> String {
    let admission = table.admission.as_ref();
    let admission = admission.map_or("none".to_owned(), |a| described(&a.kind, &a.params));
    let expiry = match &table.expiry {
        None => "none".to_owned(),
        Some(e) => format!(
            "after {:?} steps, {:?} days, below a norm of {:?} after {:?} steps, by {:?}",
            e.steps, e.days, e.min_norm, e.grace_steps, e.statistic
        ),
    };
    format!("admission {admission} and expiry {expiry}")
}

fn described(kind: &str, params: &BTreeMap<String, f64>) -> String {
    let params: Vec<_> = params.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{kind}({})", params.join(", "))
}
