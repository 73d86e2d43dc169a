//! Gives the contents of a store, part by part, to a store that makes the same updates meanwhile.
//!
//! An update changes each number of the vectors, with its slots, by itself and by its gradient
//! alone. So a store with any contents may make all updates from some version on. If a part of it
//! is replaced by the part of another store at that moment, the part has the other store's bits
//! from then on.

use std::ops::Range;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{Model, Store};
use crate::error::StoreError;
use crate::features::life::Times;
use crate::tasks::Watermark;

/// All that a store without tables holds beside its vectors.
#[derive(Serialize, Deserialize)]
struct Outline {
    version: u64,
    /// Task, lease, next minibatch, records.
    watermarks: Vec<(u64, u32, u32, u64)>,
    /// When versions were.
    times: Vec<(u64, u64)>,
    /// In how many updates each dense variable rested.
    #[serde(default)]
    rests: Vec<u64>,
}

impl Store {
    /// Return what this store holds beside its vectors, for [`Store::take_outline`].
    ///
    /// # Errors
    /// No model has been declared, or one that has tables.
    pub fn outline(&self) -> Result<String, StoreError> {
        let model = self.without_tables()?;
        let _updates = self.updates.write();
        let watermarks = model.tasks.all().into_iter();
        let outline = Outline {
            version: model.version(),
            watermarks: watermarks
                .map(|(task, mark)| (task, mark.lease, mark.next_index, mark.num_records))
                .collect(),
            times: model.times.lock().notes().to_vec(),
            rests: model.vectors.read().rests().to_vec(),
        };
        serde_json::to_string(&outline).map_err(|error| StoreError::BadModel(error.to_string()))
    }

    /// Hold that in place of what this store held beside its vectors.
    ///
    /// # Errors
    /// No model has been declared, or one that has tables; an outline that is none.
    pub fn take_outline(&self, outline: &str) -> Result<(), StoreError> {
        let model = self.without_tables()?;
        let outline: Outline = serde_json::from_str(outline).map_err(|error| {
            StoreError::BadModel(format!(
                "what another worker says of its parameters cannot be read: {error}; do all \
                 workers run the same version of elasticdl?"
            ))
        })?;
        let _updates = self.updates.write();
        let watermarks = outline.watermarks.into_iter();
        model
            .tasks
            .replace(watermarks.map(|(task, lease, next_index, num_records)| {
                let mark = Watermark {
                    lease,
                    next_index,
                    num_records,
                };
                (task, mark)
            }));
        *model.times.lock() = Times::restored(outline.times);
        model.vectors.write().take_rests(outline.rests);
        model.begun.store(outline.version, Ordering::Release);
        model.version.store(outline.version, Ordering::Release);
        Ok(())
    }

    /// Return how many numbers the optimizer keeps for each of the dense vector.
    ///
    /// # Errors
    /// No model has been declared.
    pub fn num_slots(&self) -> Result<usize, StoreError> {
        let model = self.declared("its slots are counted")?;
        Ok(model.vectors.read().num_slots())
    }

    /// Copy a part of the vectors into `out`: its range of the dense vector, the same range of each
    /// slot, its range of the state. `part` counts the dense values, and after them the state's.
    ///
    /// # Errors
    /// No model has been declared; a part that the model does not have, or `out` of another length.
    pub fn read_part(&self, part: Range<usize>, out: &mut [f32]) -> Result<(), StoreError> {
        let model = self.declared("its parameters are given")?;
        model.vectors.read().read_part(part, out)
    }

    /// Replace a part of the vectors by what [`Store::read_part`] has copied.
    ///
    /// # Errors
    /// As those of [`Store::read_part`]; nothing has changed then.
    pub fn write_part(&self, part: Range<usize>, values: &[f32]) -> Result<(), StoreError> {
        let model = self.declared("it is given parameters")?;
        let _updates = self.updates.read();
        model.vectors.write().write_part(part, values)
    }

    fn without_tables(&self) -> Result<&Model, StoreError> {
        let model = self.declared("its parameters are given")?;
        if model.tables.is_empty() {
            return Ok(model);
        }
        Err(StoreError::BadModel(format!(
            "a model with {} tables cannot be given part by part, expected one without",
            model.tables.len()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ModelSpec;
    use crate::store::Push;

    const DENSE: usize = 37;
    const STATE: usize = 5;

    fn store(kind: &str, params: &str) -> Store {
        let store = Store::new(0, 1);
        let model = format!(
            r#"{{"tables": [], "optimizer": {{"kind": "{kind}", "params": {params}}}, "seed": 0,
                "dense": [{{"name": "a", "shape": [30], "offset": 0}},
                          {{"name": "b", "shape": [7], "offset": 30, "trainable": false}}],
                "state": [{{"name": "mean", "shape": [5], "offset": 0, "momentum": 0.75}}]}}"#
        );
        let spec = ModelSpec::from_json(&model).unwrap();
        store.declare(spec, &[0.5; DENSE], &[1.0; STATE]).unwrap();
        store
    }

    fn update(store: &Store, index: u32) {
        let gradient: Vec<_> = (0..DENSE)
            .map(|at| ((at as u32 * 7 + index * 13) % 11) as f32 - 4.5)
            .collect();
        let push = Push {
            task: 3,
            lease: 2,
            index,
            num_records: 8,
            learning_rate: 0.1,
            pulled_version: 0,
            tables: &[],
            dense: &gradient,
            state: &[0.25; STATE],
        };
        store.apply(&push).unwrap();
    }

    fn bits(store: &Store) -> Vec<u32> {
        let mut all = vec![0.0; DENSE * (1 + store.num_slots().unwrap()) + STATE];
        store.read_part(0..DENSE + STATE, &mut all).unwrap();
        all.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn a_store_that_is_given_part_by_part_between_updates_has_the_same_bits() {
        let adam = r#"{"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0}"#;
        for (kind, params) in [
            ("adam", adam),
            ("sgd", "{}"),
            ("lion", r#"{"beta_1": 0.9, "beta_2": 0.99}"#),
        ] {
            for size in [1, 4, 5, 16, DENSE + STATE] {
                let (giver, joiner) = (store(kind, params), store(kind, params));
                for index in 0..3 {
                    update(&giver, index);
                }
                joiner.take_outline(&giver.outline().unwrap()).unwrap();
                let (mut first, mut index) = (0, 3);
                while first < DENSE + STATE {
                    for store in [&giver, &joiner] {
                        update(store, index);
                    }
                    index += 1;
                    let part = first..(first + size).min(DENSE + STATE);
                    let dense = part.end.min(DENSE) - part.start.min(DENSE);
                    let num_values = part.len() + dense * giver.num_slots().unwrap();
                    let mut values = vec![0.0; num_values];
                    giver.read_part(part.clone(), &mut values).unwrap();
                    joiner.write_part(part.clone(), &values).unwrap();
                    first = part.end;
                }
                assert_eq!(bits(&giver), bits(&joiner), "{kind}, {size} at a time");
                assert_eq!(giver.outline().unwrap(), joiner.outline().unwrap());
                assert_eq!(joiner.version(), u64::from(index));
            }
        }
    }

    #[test]
    fn what_a_store_has_given_is_not_what_it_holds_after_another_update() {
        let (giver, joiner) = (store("sgd", "{}"), store("sgd", "{}"));
        update(&giver, 0);
        let mut values = vec![0.0; DENSE + STATE];
        giver.read_part(0..DENSE + STATE, &mut values).unwrap();
        update(&giver, 1);
        joiner.write_part(0..DENSE + STATE, &values).unwrap();
        assert_ne!(bits(&giver), bits(&joiner));
    }

    #[test]
    fn a_part_that_does_not_fit_is_refused() {
        let store = store("sgd", "{}");
        let before = bits(&store);
        for (part, len) in [(0..2, 3), (40..43, 3)] {
            let error = store.write_part(part, &vec![9.0; len]).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("do all workers run the same model?")
            );
        }
        assert_eq!(bits(&store), before);
        let error = store.take_outline("{}").unwrap_err().to_string();
        assert!(error.contains("missing field `version`"), "{error}");
    }
}
