//! Statistics of keys: any number of replicas has those of a plain model, and goes by them.

use std::collections::BTreeMap;

use crate::common::moving::Move;
use crate::common::{Grads, Replicas, WholePush, constant, model, params, table};
use edl_store::{
    AdmissionSpec, ExpirySpec, ModelSpec, PullMode, StatisticSpec, StatisticsSpec, Store,
    StoreError,
};

const DECAY: f64 = 0.7;
const ADMITTED_AT: f32 = 3.0;
const EXPIRED_BELOW: f32 = 0.4;
const ROWS: u32 = 0;
const STATISTICS: u32 = 1;

/// A table of rows, and one of shows and clicks, by which the rows come and go.
fn spec() -> ModelSpec {
    let mut spec = model("sgd", 0, 0);
    let mut tables = vec![
        table("item", 2, "sgd", constant(0.0)),
        table("item_statistics", 3, "sgd", constant(0.0)),
    ];
    let expiry = ExpirySpec {
        statistic: Some(StatisticSpec {
            table: STATISTICS,
            column: 0,
            limit: f64::from(EXPIRED_BELOW),
        }),
        ..ExpirySpec::default()
    };
    let limit = [
        ("table", 1.0),
        ("column", 0.0),
        ("limit", f64::from(ADMITTED_AT)),
    ];
    tables[0].admission = Some(AdmissionSpec {
        kind: "statistic".to_owned(),
        params: params(&limit),
    });
    tables[0].expiry = Some(expiry.clone());
    tables[1].expiry = Some(expiry);
    tables[1].statistics = Some(StatisticsSpec {
        decay: DECAY,
        steps: 1,
    });
    spec.tables = tables;
    spec
}

/// What the store should have, key by key.
#[derive(Default)]
struct Plain {
    newest: f32,
    statistics: BTreeMap<u64, [f32; 3]>,
    rows: BTreeMap<u64, f32>,
}

fn left_after(periods: f32) -> f32 {
    let (mut left, mut power, mut n) = (1.0, DECAY, periods as u32);
    while n > 0 {
        if n % 2 == 1 {
            left *= power;
        }
        power *= power;
        n /= 2;
    }
    left as f32
}

impl Plain {
    fn now(&self, [show, click, of]: [f32; 3]) -> [f32; 3] {
        let left = left_after(self.newest - of);
        [show * left, click * left, self.newest]
    }

    fn push(&mut self, keys: &[u64], clicks: &[f32], period: f32) {
        self.newest = self.newest.max(period);
        for (&key, &click) in keys.iter().zip(clicks) {
            let row = self.statistics.entry(key).or_default();
            let newest = row[2].max(period);
            let (kept, counted) = (left_after(newest - row[2]), left_after(newest - period));
            let sums = [
                2.0 * counted + kept * row[0],
                click * counted + kept * row[1],
            ];
            *row = [sums[0], sums[1], newest];
            if self.rows.contains_key(&key) || self.now(self.statistics[&key])[0] >= ADMITTED_AT {
                *self.rows.entry(key).or_default() += 1.0;
            }
        }
    }

    fn expire(&mut self) {
        let shows = |key: &u64| {
            self.statistics
                .get(key)
                .map_or(0.0, |row| self.now(*row)[0])
        };
        let low: Vec<u64> = (0..400).filter(|key| shows(key) < EXPIRED_BELOW).collect();
        for key in low {
            self.rows.remove(&key);
            self.statistics.remove(&key);
        }
    }

    fn check(&self, replicas: &Replicas) {
        let found = replicas.scan(STATISTICS, 3, 100);
        let wanted = self.statistics.iter();
        let wanted = wanted.map(|(&key, &row)| (key, self.now(row).to_vec()));
        assert_eq!(found, wanted.collect());
        let rows = self.rows.iter().map(|(&key, &row)| (key, vec![row; 2]));
        assert_eq!(replicas.scan(ROWS, 2, 100), rows.collect());
    }
}

/// Keys that are common, so that every replica hears of each period, and some that come for a while.
fn keys_of(index: u32) -> Vec<u64> {
    let rare = (0..6).map(|i| 40 + u64::from(index / 6 * 131 + i * 37) % 360);
    let mut keys: Vec<u64> = (0..40).chain(rare).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn push(replicas: &Replicas, plain: &mut Plain, index: u32) {
    let keys = keys_of(index);
    // Some come late.
    let period = (index / 3).saturating_sub(4 * u32::from(index.is_multiple_of(7))) as f32;
    let clicks: Vec<f32> = keys.iter().map(|key| (key % 3) as f32).collect();
    let amounts = clicks.iter().flat_map(|&click| [2.0, click, period]);
    let push = WholePush {
        index,
        learning_rate: 1.0,
        // The table that goes by the statistics comes first, and is updated last.
        tables: vec![
            Grads::of(ROWS, keys.clone(), vec![-1.0; 2 * keys.len()]),
            Grads::of(STATISTICS, keys.clone(), amounts.collect()),
        ],
        ..WholePush::default()
    };
    replicas.push(&push).unwrap();
    let again = replicas.push(&push).unwrap();
    assert!(again.iter().all(|applied| !applied.applied));
    plain.push(&keys, &clicks, period);
}

#[test]
fn any_number_of_replicas_has_the_statistics_of_a_plain_model_and_goes_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut replicas = Replicas::declared(3, &spec());
    let (mut plain, mut waited, mut gone) = (Plain::default(), 0, 0);
    let mut moving: Option<Move> = None;
    for index in 0..200 {
        push(&replicas, &mut plain, index);
        waited += plain.statistics.len() - plain.rows.len();
        if index % 25 == 24 {
            for store in &replicas.0 {
                store.expire(0).unwrap();
            }
            gone += plain.rows.len();
            plain.expire();
            gone -= plain.rows.len();
        }
        if index % 50 == 49 {
            let dir = folder.path().join(index.to_string());
            replicas.checkpoint(&dir);
            replicas = Replicas::restore(&dir, 1 + index % 4, true).unwrap();
            replicas.declare(&spec()).unwrap();
        }
        if index % 50 == 30 {
            let begun = moving.get_or_insert_with(|| Move::to(1 + index % 3, &replicas));
            begun.copy(&replicas).unwrap();
        }
        if let Some(begun) = moving.take_if(|_| index % 50 == 40) {
            replicas = begun.end(&replicas);
        }
        plain.check(&replicas);
    }
    assert!(waited > 0 && gone > 0 && !plain.rows.is_empty());
}

#[test]
fn a_pull_reads_statistics_as_they_are_now_and_creates_none() {
    let replicas = Replicas::declared(1, &spec());
    let mut plain = Plain::default();
    (0..9).for_each(|index| push(&replicas, &mut plain, index));
    let pulled = replicas.pull(STATISTICS, 3, &[0, 399], PullMode::Create);
    assert_eq!(pulled[..3], plain.now(plain.statistics[&0]));
    assert_eq!(pulled[3..], [0.0, 0.0, plain.newest]);
    plain.check(&replicas);
}

#[test]
fn a_new_job_goes_on_with_the_sums_and_counts_periods_from_0() {
    let folder = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(2, &spec());
    let mut plain = Plain::default();
    (0..60).for_each(|index| push(&replicas, &mut plain, index));
    replicas.checkpoint(folder.path());
    let replicas = Replicas::restore(folder.path(), 1, false).unwrap();
    let newest = plain.newest;
    for row in plain.statistics.values_mut() {
        let left = left_after(newest - row[2]);
        *row = [row[0] * left, row[1] * left, 0.0];
    }
    plain.newest = 0.0;
    plain.check(&replicas);
}

#[test]
fn a_table_goes_by_statistics_that_there_are() {
    let refused = |change: &dyn Fn(&mut ModelSpec), said: &str| {
        let mut spec = spec();
        change(&mut spec);
        let error = Store::new(0, 1).declare(spec, &[], &[]).unwrap_err();
        assert!(matches!(error, StoreError::BadModel(_)));
        assert!(error.to_string().contains(said), "{error}");
    };
    refused(
        &|spec| spec.tables[1].statistics = None,
        "which has none such",
    );
    let column = |spec: &mut ModelSpec, column| {
        let expiry = spec.tables[0].expiry.as_mut().unwrap();
        expiry.statistic.as_mut().unwrap().column = column;
    };
    refused(&|spec| column(spec, 2), "statistic 2 of table 1");
    let decay = |spec: &mut ModelSpec| spec.tables[1].statistics.as_mut().unwrap().decay = 1.5;
    refused(&decay, "at most 1, found 1.5");
    refused(&|spec| spec.tables[1].dim = 1, "expected dim of 2 or more");
}
