//! The client: ids in, rows out; gradients in, one update each.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use edl_store::{Chunk, ModelSpec, PullMode, StateRules, Statistics, Store, StoreError, TaskAudit};
use edl_wire::frame::Element;
use edl_wire::op::Step;

use crate::clip::Clipping;
use crate::dedup::{Plan, Planner, Site};
use crate::elsewhere::Elsewhere;
use crate::error::{ErrorKind, PsError};
use crate::hot_keys;
use crate::local::Local;
use crate::names::{Batch, NameSite, SentNames};
use crate::remote::Remote;
use crate::replicas::{
    GivenRows, Gradients, Minibatch, OnePush, Pull, Replicas, Vectors, check_given,
};
use crate::several::{Sum, kept};
use crate::tables::element_of;

/// The result of one pull.
#[derive(Debug)]
pub struct Pulled {
    /// For each site: a row per id.
    pub rows: Vec<Vec<f32>>,
    /// The whole dense vector, or empty if it was not asked for.
    pub dense: Vec<f32>,
    /// The whole state vector, or empty if it was not asked for.
    pub state: Vec<f32>,
    /// The receipt that the push needs.
    pub receipt: Receipt,
}

impl Pulled {
    /// Splits a pull that was made for several minibatches; each has as many sites. The vectors are
    /// those of all, and stay here.
    pub fn split(&mut self, num_minibatches: usize) -> Vec<(Vec<Vec<f32>>, Receipt)> {
        let each = self.rows.len() / num_minibatches.max(1);
        let mut rows = std::mem::take(&mut self.rows).into_iter();
        let parts = (0..num_minibatches).map(|minibatch| {
            let receipt = Receipt {
                plan: self
                    .receipt
                    .plan
                    .part(minibatch * each..(minibatch + 1) * each),
                versions: self.receipt.versions.clone(),
            };
            (rows.by_ref().take(each).collect(), receipt)
        });
        parts.collect()
    }
}

/// The facts of a pull that its push needs. Any number of pulls may be made before it is used.
#[derive(Debug)]
pub struct Receipt {
    pub(crate) plan: Plan,
    pub(crate) versions: Vec<u64>,
}

impl Receipt {
    /// Updates that replica 0 had applied.
    pub fn version(&self) -> u64 {
        self.versions.first().copied().unwrap_or(0)
    }

    /// Says that vectors of an earlier pull are used: staleness counts from that one.
    pub fn with_vectors_of(mut self, earlier: &Self) -> Self {
        for (version, earlier) in self.versions.iter_mut().zip(&earlier.versions) {
            *version = (*version).min(*earlier);
        }
        self
    }
}

/// The request of a pull.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The ids of every site.
    pub sites: &'a [Site<'a>],
    /// Whether rows are made that are missing.
    pub mode: PullMode,
    /// Whether the dense and state vectors are wanted too.
    pub vectors: bool,
    /// The step of a pull whose gradient will be pushed. With bounded staleness the pull waits
    /// until that gradient cannot come too late.
    pub step: Option<Step>,
}

/// The results of a minibatch's backward pass.
#[derive(Clone, Copy, Debug)]
pub struct StepGradients<'a> {
    /// For each site of the pull, a gradient for each id.
    pub rows: &'a [&'a [f32]],
    /// The gradient of the dense vector.
    pub dense: &'a [f32],
    /// The change of the state vector.
    pub state: &'a [f32],
}

/// A minibatch that has been computed, one of several that are pushed together.
#[derive(Clone, Copy, Debug)]
pub struct ComputedStep<'a> {
    /// Of its pull.
    pub receipt: &'a Receipt,
    /// The results of the backward pass.
    pub gradients: StepGradients<'a>,
    /// Records in it.
    pub num_records: u32,
}

/// The position of a scan in a table.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    table: u32,
    replica: usize,
    next: u64,
}

impl Cursor {
    /// The start of a table.
    pub fn new(table: u32) -> Self {
        Self {
            table,
            replica: 0,
            next: 0,
        }
    }
}

/// The lengths that calls are checked against, once the model is known.
struct Shape {
    /// Names of the tables.
    names: Vec<String>,
    dims: Vec<usize>,
    /// For each table, the type in which its rows travel.
    elements: Vec<Element>,
    /// For each table, whether it is trained.
    trainable: Vec<bool>,
    /// For each table of statistics, how its rows are added.
    statistics: Vec<Option<Statistics>>,
    dense_len: usize,
    state_len: usize,
    clipping: Option<Clipping>,
    state_rules: StateRules,
}

impl Shape {
    fn of(model: &ModelSpec) -> Result<Self, StoreError> {
        Ok(Self {
            names: model.tables.iter().map(|t| t.name.clone()).collect(),
            dims: model.tables.iter().map(|t| t.dim as usize).collect(),
            elements: (model.tables.iter().map(|t| element_of(t.wire_dtype))).collect(),
            trainable: model.tables.iter().map(|table| table.trainable).collect(),
            statistics: (model.tables.iter())
                .map(|table| table.statistics.map(|s| s.parse()).transpose())
                .collect::<Result<_, _>>()
                .map_err(StoreError::BadModel)?,
            dense_len: model.dense_len()?,
            state_len: model.state_len()?,
            clipping: Clipping::of(model),
            state_rules: StateRules::of(model)?,
        })
    }
}

impl Shape {
    /// Says of each table of a plan how its rows travel, and what is pushed of it.
    fn treat(&self, plan: &mut Plan) {
        for table in &mut plan.tables {
            table.element = self.elements[table.table as usize];
            table.trainable = self.trainable[table.table as usize];
            table.statistics = self.statistics[table.table as usize];
        }
    }
}

/// Buffers that calls use in turn.
#[derive(Default)]
struct Scratch {
    planner: Planner,
    rows: Vec<Vec<f32>>,
}

impl Scratch {
    /// Rows for every table of a plan, with whatever was in them: all will be overwritten.
    fn rows_of(&mut self, plan: &Plan) -> &mut [Vec<f32>] {
        self.rows.resize_with(plan.tables.len(), Vec::new);
        for (table, rows) in plan.tables.iter().zip(&mut self.rows) {
            rows.resize(table.keys().len() * table.dim, 0.0);
        }
        &mut self.rows
    }
}

/// How long a client that asked a layout that is over waits to be told of the one that counts.
const UNTIL_TOLD: Duration = Duration::from_secs(60);
/// It looks this often.
const LOOK: Duration = Duration::from_millis(20);

/// Reads and updates a model spread over ps replicas.
pub struct PsClient {
    /// The replicas of the known layout; replaced when they say that the layout is over.
    replicas: RwLock<Arc<dyn Replicas>>,
    shape: OnceLock<Shape>,
    scratch: Mutex<Vec<Scratch>>,
    /// The strings of keys that the replicas have; locked for the length of a call.
    sent_names: Mutex<SentNames>,
}

impl PsClient {
    /// A client of the replicas at the other end of sockets.
    pub fn remote(remote: Remote) -> Self {
        Self::over(remote.shared())
    }

    /// The same client without sockets.
    ///
    /// # Errors
    /// [`PsError::Invalid`] if the store is one of several replicas.
    pub fn in_process(store: Arc<Store>) -> Result<Self, PsError> {
        Ok(Self::over(Arc::new(Local::new(store)?)))
    }

    /// A client of one store in process, whichever part of a model it is, for simulations.
    pub(crate) fn of_part(store: Arc<Store>) -> Self {
        Self::over(Arc::new(Local::part(store)))
    }

    fn over(replicas: Arc<dyn Replicas>) -> Self {
        Self {
            replicas: RwLock::new(replicas),
            shape: OnceLock::new(),
            scratch: Mutex::new(Vec::new()),
            sent_names: Mutex::default(),
        }
    }

    /// Returns the replicas of the known layout.
    pub(crate) fn replicas(&self) -> Arc<dyn Replicas> {
        let replicas = self.replicas.read();
        replicas.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the replicas; if their layout is over, asks those that they name.
    fn asked<T>(
        &self,
        mut ask: impl FnMut(&dyn Replicas) -> Result<T, PsError>,
    ) -> Result<T, PsError> {
        let deadline = Instant::now() + UNTIL_TOLD;
        loop {
            let replicas = self.replicas();
            match ask(&*replicas) {
                Err(error) if error.kind() == ErrorKind::Moved => {
                    self.follow(&replicas, error, deadline)?;
                }
                answered => return answered,
            }
        }
    }

    /// Goes over to the replicas that those of an earlier layout have named, unless another call
    /// has done so. A replica that was started since does not know them: they are waited for, until
    /// [`PsClient::set_addresses`] tells.
    fn follow(
        &self,
        seen: &Arc<dyn Replicas>,
        error: PsError,
        deadline: Instant,
    ) -> Result<(), PsError> {
        let known = self.replicas.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&known, seen) {
            return Ok(());
        }
        let told = match &error {
            PsError::Moved(message) | PsError::Remote { message, .. } => message.as_str(),
            _ => "",
        };
        match serde_json::from_str::<Elsewhere>(told) {
            Err(_) if told.is_empty() && Instant::now() < deadline => {
                drop(known);
                thread::sleep(LOOK);
                Ok(())
            }
            Ok(there) if there.number > known.layout() => {
                *known = known.of_layout(&there)?;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Has one replica do a step of a move; both as JSON.
    ///
    /// # Errors
    /// What the replica says, or an unreachable one.
    pub fn move_step(&self, replica: usize, step: &str) -> Result<String, PsError> {
        self.replicas().move_step(replica, step)
    }

    /// Declares the model; the values of the first to declare count.
    ///
    /// # Errors
    /// A model that cannot be, or that differs from the one declared before.
    pub fn declare(&self, model: &str, dense: &[f32], state: &[f32]) -> Result<(), PsError> {
        self.declare_with(model, dense, state, &[])
    }

    /// Declares a model some of whose tables begin with rows: all tables with `given_rows`.
    ///
    /// # Errors
    /// Those of [`Self::declare`], or rows that do not fit their table.
    pub fn declare_with(
        &self,
        model: &str,
        dense: &[f32],
        state: &[f32],
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError> {
        let model = ModelSpec::from_json(model)?;
        let shape = Shape::of(&model)?;
        check_len("the dense vector", dense.len(), shape.dense_len)?;
        check_len("the state vector", state.len(), shape.state_len)?;
        check_given(&model, given)?;
        self.asked(|replicas| replicas.declare(&model, dense, state, given))?;
        // Equal to what is there already, or `declare` would have failed.
        let _ = self.shape.set(shape);
        Ok(())
    }

    /// The model's lengths, asked of replica 0 by a client that has not declared it itself.
    fn shape(&self) -> Result<&Shape, PsError> {
        if self.shape.get().is_none() {
            let shape = Shape::of(&*self.asked(|replicas| replicas.model())?)?;
            let _ = self.shape.set(shape);
        }
        let unknown = || PsError::System("the model is not known".to_owned());
        self.shape.get().ok_or_else(unknown)
    }

    /// Fences off older leases; returns the minibatch to start at.
    ///
    /// # Errors
    /// A newer lease has begun.
    pub fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        self.asked(|replicas| replicas.begin_task(task, lease))
    }

    /// Has all replicas hear of all minibatches of a lease that were pushed; called before anybody
    /// is told that the task is done. A replica without a key of a minibatch may not have heard.
    ///
    /// # Errors
    /// Those of a push.
    pub fn settle_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        self.asked(|replicas| replicas.settle_task(task, lease))
    }

    /// Says that a lease is over: nobody waits for what is under way of it.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        self.shape()?;
        self.asked(|replicas| replicas.end_task(task, lease))
    }

    /// Fetches the rows of every site and, if `vectors`, the dense and state vectors.
    ///
    /// Args: `step` as in [`Wanted`].
    ///
    /// # Errors
    /// An unknown table, or an unreachable replica.
    pub fn pull(
        &self,
        sites: &[Site<'_>],
        mode: PullMode,
        vectors: bool,
        step: Option<Step>,
    ) -> Result<Pulled, PsError> {
        let wanted = Wanted {
            sites,
            mode,
            vectors,
            step,
        };
        let (pulled, ()) =
            self.asked(|replicas| self.pulled_by(replicas, &wanted, |pull| replicas.pull(pull)))?;
        Ok(pulled)
    }

    /// Plans a push of gradients of other ids than were pulled, from the versions of that pull.
    ///
    /// # Errors
    /// An unknown table.
    pub fn planned(&self, sites: &[Site<'_>], receipt: &Receipt) -> Result<Receipt, PsError> {
        let shape = self.shape()?;
        let mut scratch = self.take_scratch();
        let num_replicas = receipt.versions.len();
        let plan = scratch.planner.plan(sites, &shape.dims, num_replicas);
        self.give_scratch(scratch);
        let mut plan = plan?;
        shape.treat(&mut plan);
        let versions = receipt.versions.clone();
        Ok(Receipt { plan, versions })
    }

    /// Plans a pull, has it made, and gives every occurrence of an id its row.
    fn pulled_by<T>(
        &self,
        replicas: &dyn Replicas,
        wanted: &Wanted<'_>,
        pull: impl FnOnce(Pull<'_>) -> Result<T, PsError>,
    ) -> Result<(Pulled, T), PsError> {
        let shape = self.shape()?;
        let mut scratch = self.take_scratch();
        let pulled = self.pulled_with(replicas.count(), &mut scratch, shape, wanted, pull);
        self.give_scratch(scratch);
        pulled
    }

    fn pulled_with<T>(
        &self,
        num_replicas: usize,
        scratch: &mut Scratch,
        shape: &Shape,
        wanted: &Wanted<'_>,
        pull: impl FnOnce(Pull<'_>) -> Result<T, PsError>,
    ) -> Result<(Pulled, T), PsError> {
        let mut plan = scratch
            .planner
            .plan(wanted.sites, &shape.dims, num_replicas)?;
        shape.treat(&mut plan);
        if wanted.mode == PullMode::Create {
            hot_keys::note(&shape.names, &plan);
        }
        let unique = scratch.rows_of(&plan);
        let (dense_len, state_len) = if wanted.vectors {
            (shape.dense_len, shape.state_len)
        } else {
            (0, 0)
        };
        let (mut dense, mut state) = (vec![0.0; dense_len], vec![0.0; state_len]);
        let mut versions = vec![0; num_replicas];
        let told = pull(Pull {
            plan: &plan,
            mode: wanted.mode,
            step: wanted.step,
            rows: unique,
            vectors: wanted.vectors.then_some(Vectors {
                dense: &mut dense,
                state: &mut state,
            }),
            versions: &mut versions,
        })?;
        let mut rows: Vec<Vec<f32>> = plan
            .site_elements
            .iter()
            .map(|&elements| vec![0.0; elements])
            .collect();
        for (table, unique) in plan.tables.iter().zip(unique) {
            table.gather(unique, &mut rows);
        }
        let pulled = Pulled {
            rows,
            dense,
            state,
            receipt: Receipt { plan, versions },
        };
        Ok((pulled, told))
    }

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

    /// The time that pulls and pushes have spent in the stores of all replicas, as the replicas
    /// measured it. The time of a push includes its wait for a round.
    pub fn store_time(&self) -> Duration {
        self.replicas().store_time()
    }

    /// Counts a minibatch as dealt with, without an update.
    ///
    /// # Errors
    /// A lease that is over, or an unreachable replica.
    pub fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        self.asked(|replicas| replicas.skip(task, lease, index))
    }

    /// Returns the next rows of a table and moves the cursor; `None` at the end.
    ///
    /// # Errors
    /// An unknown table, or an unreachable replica.
    pub fn scan(&self, cursor: &mut Cursor) -> Result<Option<Chunk>, PsError> {
        while cursor.replica < self.replicas().count() {
            let Cursor {
                table,
                replica,
                next,
            } = *cursor;
            // Only a scan that begins may be asked elsewhere.
            let chunk = if (replica, next) == (0, 0) {
                self.asked(|replicas| replicas.scan(0, table, 0))?
            } else {
                self.replicas().scan(replica, table, next)?
            };
            match chunk.next {
                Some(next) => cursor.next = next,
                None => (cursor.replica, cursor.next) = (cursor.replica + 1, 0),
            }
            if !chunk.keys.is_empty() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// The dim of a table.
    ///
    /// # Errors
    /// An unknown table, or no model.
    pub fn dim(&self, table: u32) -> Result<usize, PsError> {
        let dims = &self.shape()?.dims;
        let unknown = StoreError::UnknownTable {
            table,
            num_tables: dims.len(),
        };
        Ok(*dims.get(table as usize).ok_or(unknown)?)
    }

    /// For each replica, what it has applied of every task.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn audit(&self) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        self.audit_from(0)
    }

    /// The same of tasks from one on; replicas forget those before, and refuse what comes of them.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn audit_from(&self, first: u64) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        self.asked(|replicas| replicas.audit(first))
    }

    /// Counters of every replica, each a JSON object.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn stats(&self) -> Result<Vec<String>, PsError> {
        self.asked(|replicas| replicas.stats())
    }

    /// Has every replica write its files; returns their manifest entries.
    ///
    /// # Errors
    /// Files that cannot be written, or an unreachable replica.
    pub fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        self.replicas().checkpoint(directory)
    }

    /// Makes every replica remove the rows that have expired, by its own count of updates and the
    /// time `now` in seconds since 1970. Returns the removed rows, as JSON by table.
    ///
    /// # Errors
    /// No model, or an unreachable replica.
    pub fn expire(&self, now: u64) -> Result<Vec<String>, PsError> {
        self.replicas().expire(now)
    }

    /// Has every replica write its part of the tables, all at the same time; `request` is an
    /// [`edl_export::ExportRequest`] as JSON, and so is each answer an
    /// [`edl_export::ReplicaExport`].
    ///
    /// # Errors
    /// Files that cannot be written, or an unreachable replica.
    pub fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        self.replicas().export(request)
    }

    /// Sends the replicas the strings that ids were made of, for tables that keep them. The call
    /// comes before the push of a minibatch, with the minibatch's sites, even if no string has to
    /// be sent. Without sites, the call confirms the strings of the last call.
    ///
    /// # Errors
    /// A table that keeps no names, no memory for them, or an unreachable replica.
    pub fn name_keys(&self, sites: &[NameSite<'_>]) -> Result<(), PsError> {
        for site in sites {
            check_len("the array of names", site.names.len(), site.ids.len())?;
        }
        let mut sent_before = self
            .sent_names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if sites.is_empty() && !sent_before.is_unconfirmed() {
            return Ok(());
        }
        self.asked(|replicas| name_at(replicas, sites, &mut sent_before))
    }

    /// Reaches a relaunched replica at its new address; calls that wait for it go on there.
    ///
    /// # Errors
    /// No such replica, or a client in process.
    pub fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        self.replicas().set_address(replica, address)
    }

    /// Reaches all replicas where they are now; "" for one that is not there. An earlier layout than
    /// the one that is known changes nothing.
    ///
    /// # Errors
    /// Another number of replicas under the same layout, or a client in process.
    pub fn set_addresses(&self, layout: u64, addresses: &[String]) -> Result<(), PsError> {
        let known = self.replicas.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if layout > known.layout() {
            let addresses = addresses.to_vec();
            let number = layout;
            *known = known.of_layout(&Elsewhere { number, addresses })?;
            return Ok(());
        }
        let there = addresses.iter().enumerate();
        for (replica, address) in there.filter(|(_, address)| !address.is_empty()) {
            if layout == known.layout() {
                known.set_address(replica, address)?;
            }
        }
        Ok(())
    }

    fn take_scratch(&self) -> Scratch {
        let mut pool = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        pool.pop().unwrap_or_default()
    }

    fn give_scratch(&self, scratch: Scratch) {
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scratch);
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

/// Has the replicas of one layout know strings of ids.
fn name_at(
    replicas: &dyn Replicas,
    sites: &[NameSite<'_>],
    sent_before: &mut SentNames,
) -> Result<(), PsError> {
    let count = replicas.count();
    let mut batch = sent_before.go_over_to(replicas.layout(), count);
    let unsent = sent_before.unsent(sites, count);
    for (names, more) in batch.iter_mut().zip(unsent) {
        names.extend(more);
    }
    let mut sent: Batch = vec![Vec::new(); count];
    loop {
        let answers = replicas.name(&batch)?;
        let lost = sent_before.heard(&batch, &answers);
        for (sent, names) in sent.iter_mut().zip(&mut batch) {
            sent.append(names);
        }
        if lost.is_empty() {
            sent_before.keep(sent);
            return Ok(());
        }
        batch = sent_before.again(sites, &lost);
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

fn check_len(what: &str, found: usize, expected: usize) -> Result<(), PsError> {
    if found == expected {
        return Ok(());
    }
    Err(PsError::Invalid(format!(
        "{what} has {found} elements, expected {expected}"
    )))
}
