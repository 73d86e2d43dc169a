//! Gradients in, one update each.

use super::shape::check_len;
use super::{ComputedStep, PsClient, Pulled, Receipt, Scratch, StepGradients, Wanted};
use crate::dedup::Plan;
use crate::error::PsError;
use crate::replicas::{Gradients, Minibatch, OnePush, Replicas};
use crate::several::{Sum, kept};

impl PsClient {
    /// Applies one minibatch's gradients exactly once; returns (version, staleness).
    ///
    /// `row_grads` has, for each site of the pull, a gradient for each id.
    ///
    /// # Errors
    /// After [`edl_store::StoreError::TooStale`] nothing has changed, and the minibatch may be
    /// pulled and computed again. Other errors: a lease that is over, arrays that do not fit the
    /// pull, or an unreachable replica.
    pub fn push(
        &self,
        receipt: &Receipt,
        row_grads: &[&[f32]],
        dense: &[f32],
        state: &[f32],
        minibatch: &Minibatch,
    ) -> Result<(u64, u64), PsError> {
        let gradients = StepGradients {
            rows: row_grads,
            dense,
            state,
        };
        self.merged(receipt, &gradients, |replicas, plan, merged, versions| {
            replicas.push(plan, merged, minibatch, versions)
        })
    }

    /// Applies the gradients of several minibatches exactly once, all as one update: the sum of
    /// their gradients, each clipped by itself if the model says so. Returns (version, staleness).
    ///
    /// Args: `minibatch` is the first of those that follow each other; how many there are and how
    /// many records they have is taken from `steps`.
    ///
    /// # Errors
    /// Those of a push, also if replicas do not apply each gradient as it comes.
    pub fn push_several(
        &self,
        steps: &[ComputedStep<'_>],
        minibatch: &Minibatch,
    ) -> Result<(u64, u64), PsError> {
        let shape = self.shape()?;
        let num_records: u32 = steps.iter().map(|step| step.num_records).sum();
        let mut parts = Vec::with_capacity(steps.len());
        for step in steps {
            let share = step.num_records as f32 / num_records.max(1) as f32;
            let part = self.merged(step.receipt, &step.gradients, |_, plan, gradients, _| {
                Ok(kept(plan, gradients))
            })?;
            parts.push((part, share));
        }
        let minibatches = Minibatch {
            num_minibatches: steps.len() as u32,
            num_records,
            ..*minibatch
        };
        self.asked(|replicas| {
            let count = replicas.count();
            let treat = |plan: &mut Plan| shape.treat(plan);
            let sum = Sum::of(&parts, &shape.dims, treat, &shape.state_rules, count)?;
            let versions = oldest_of(steps, count);
            replicas.push(&sum.plan, &sum.gradients(), &minibatches, &versions)
        })
    }

    /// Applies the gradients of several minibatches that follow each other exactly once, each as an
    /// update of its own, with one frame to each replica. Returns (version, staleness) of each.
    ///
    /// Args: `minibatches` are those of `steps`.
    ///
    /// # Errors
    /// Those of a push, of the first that is refused: those before it are applied.
    pub fn push_each(
        &self,
        steps: &[ComputedStep<'_>],
        minibatches: &[Minibatch],
    ) -> Result<Vec<(u64, u64)>, PsError> {
        let mut scratches: Vec<_> = steps.iter().map(|_| self.take_scratch()).collect();
        let pushed = self.push_each_with(&mut scratches, steps, minibatches);
        for scratch in scratches {
            self.give_scratch(scratch);
        }
        pushed
    }

    fn push_each_with(
        &self,
        scratches: &mut [Scratch],
        steps: &[ComputedStep<'_>],
        minibatches: &[Minibatch],
    ) -> Result<Vec<(u64, u64)>, PsError> {
        let merged = scratches.iter_mut().zip(steps).map(|(scratch, step)| {
            let rows = scratch.rows_of(&step.receipt.plan);
            let clipped = self.merge(step.receipt, &step.gradients, rows)?;
            Ok((&*rows, clipped, step))
        });
        let merged = merged.collect::<Result<Vec<_>, PsError>>()?;
        self.asked(|replicas| {
            let cuts = merged.iter();
            let cuts = cuts.map(|(rows, _, step)| Cut::of(step.receipt, rows, replicas.count()));
            let cuts: Vec<_> = cuts.collect();
            let pushes = merged.iter().zip(&cuts).zip(minibatches);
            let pushes = pushes.map(|(((rows, clipped, step), cut), minibatch)| {
                let (plan, rows, versions) = cut.parts(step.receipt, rows);
                OnePush {
                    plan,
                    gradients: Gradients {
                        rows,
                        dense: clipped.as_deref().unwrap_or(step.gradients.dense),
                        state: step.gradients.state,
                    },
                    minibatch,
                    versions,
                }
            });
            replicas.push_each(&pushes.collect::<Vec<_>>())
        })
    }

    /// Pushes, then pulls for the next step, in one exchange of messages where the order that the
    /// replicas' synchrony demands allows it.
    ///
    /// Nothing is pulled if the pull would have to wait for others, or was refused: the caller then
    /// pulls by itself, and waits there or learns why.
    ///
    /// # Errors
    /// Those of the push alone.
    pub fn push_pull(
        &self,
        receipt: &Receipt,
        gradients: &StepGradients<'_>,
        minibatch: &Minibatch,
        next: &Wanted<'_>,
    ) -> Result<((u64, u64), Option<Pulled>), PsError> {
        self.merged(receipt, gradients, |replicas, plan, merged, versions| {
            let both = self.pulled_by(replicas, next, |next| {
                replicas.push_pull(plan, merged, minibatch, versions, next)
            });
            match both {
                Ok((pulled, (pushed, true))) => Ok((pushed, Some(pulled))),
                Ok((_, (pushed, false))) => Ok((pushed, None)),
                // The replica does not say which half it refused. A repeated push is recognised, so
                // it is sent alone.
                Err(PsError::Remote { .. } | PsError::Invalid(_) | PsError::Store(_)) => {
                    let pushed = replicas.push(plan, merged, minibatch, versions)?;
                    Ok((pushed, None))
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Checks gradients against their pull, adds the gradients of equal ids, and clips them if the
    /// model says so. Then cuts them for the present replicas, which may differ from the replicas
    /// of the pull.
    fn merged<T>(
        &self,
        receipt: &Receipt,
        gradients: &StepGradients<'_>,
        push: impl Fn(&dyn Replicas, &Plan, &Gradients<'_>, &[u64]) -> Result<T, PsError>,
    ) -> Result<T, PsError> {
        let mut scratch = self.take_scratch();
        let merged = scratch.rows_of(&receipt.plan);
        let clipped = self.merge(receipt, gradients, merged);
        let pushed = clipped.and_then(|clipped| {
            let dense = clipped.as_deref().unwrap_or(gradients.dense);
            self.asked(|replicas| {
                let cut = Cut::of(receipt, merged, replicas.count());
                let (plan, rows, versions) = cut.parts(receipt, merged);
                let merged = Gradients {
                    rows,
                    dense,
                    state: gradients.state,
                };
                push(replicas, plan, &merged, versions)
            })
        });
        self.give_scratch(scratch);
        pushed
    }

    /// Checks gradients against their pull and adds those of equal ids; clips them if the model
    /// says so, and then returns the dense gradient, clipped.
    fn merge(
        &self,
        receipt: &Receipt,
        gradients: &StepGradients<'_>,
        merged: &mut [Vec<f32>],
    ) -> Result<Option<Vec<f32>>, PsError> {
        let StepGradients { rows, dense, state } = *gradients;
        let shape = self.shape()?;
        let plan = &receipt.plan;
        if rows.len() != plan.site_elements.len() {
            return Err(PsError::Invalid(format!(
                "gradients of {} sites, {} were pulled",
                rows.len(),
                plan.site_elements.len()
            )));
        }
        for (site, (grads, &elements)) in rows.iter().zip(&plan.site_elements).enumerate() {
            check_len(
                &format!("the gradient of site {site}"),
                grads.len(),
                elements,
            )?;
        }
        check_len("the dense gradient", dense.len(), shape.dense_len)?;
        check_len("the state's change", state.len(), shape.state_len)?;

        for (table, merged) in plan.tables.iter().zip(merged.iter_mut()) {
            merged.fill(0.0);
            table.merge(rows, merged);
        }
        Ok(shape.clipping.as_ref().map(|clipping| {
            let mut dense = dense.to_vec();
            let gradients = plan.tables.iter().zip(merged.iter_mut());
            let gradients = gradients.filter(|(table, _)| table.statistics.is_none());
            let mut gradients: Vec<_> = gradients.map(|(_, rows)| rows.as_mut_slice()).collect();
            clipping.apply(&mut gradients, &mut dense);
            dense
        }))
    }
}

/// The gradients of a minibatch in the order of the present replicas, if those of its pull were
/// others.
struct Cut(Option<(Plan, Vec<Vec<f32>>, Vec<u64>)>);

impl Cut {
    fn of(receipt: &Receipt, merged: &[Vec<f32>], count: usize) -> Self {
        if receipt.versions.len() == count {
            return Self(None);
        }
        let (plan, rows) = receipt.plan.ordered_for(count, merged);
        // A move comes between two updates of all replicas; the oldest is not too new for any.
        let version = receipt.versions.iter().min().copied().unwrap_or(0);
        Self(Some((plan, rows, vec![version; count])))
    }

    /// Returns what is pushed, given what was pulled and merged.
    fn parts<'c>(
        &'c self,
        receipt: &'c Receipt,
        merged: &'c [Vec<f32>],
    ) -> (&'c Plan, &'c [Vec<f32>], &'c [u64]) {
        match &self.0 {
            None => (&receipt.plan, merged, &receipt.versions),
            Some((plan, rows, versions)) => (plan, rows, versions),
        }
    }
}

/// The versions that the oldest of some pulls was of, by replica; of pulls that asked others, the
/// oldest of all.
fn oldest_of(steps: &[ComputedStep<'_>], num_replicas: usize) -> Vec<u64> {
    let mut oldest = vec![u64::MAX; num_replicas];
    for step in steps {
        let versions = &step.receipt.versions;
        let lowest = versions.iter().min().copied().unwrap_or(0);
        let are_theirs = versions.len() == num_replicas;
        for (replica, oldest) in oldest.iter_mut().enumerate() {
            *oldest = (*oldest).min(if are_theirs {
                versions[replica]
            } else {
                lowest
            });
        }
    }
    oldest
}
