//! The bytes that the store reports are those that the process takes. Alone in its process.

#[path = "store/common/mod.rs"]
mod common;

use common::{Replicas, model};
use edl_store::PullMode;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').nth(1).unwrap();
    pages.parse::<u64>().unwrap() * 4096
}

/// Create rows of 16 floats with Adagrad; compare what is reported with what was taken.
fn check(millions: u64) {
    let replicas = Replicas::declared(1, &model("adagrad", 4, 2));
    let store = &replicas.0[0];
    let mut out = vec![0.0; 10_000 * 16];
    let before = resident();
    let num_rows = millions * 1_000_000;
    for first in (0..num_rows).step_by(10_000) {
        let keys: Vec<u64> = (first..first + 10_000).collect();
        store
            .pull_rows(0, &keys, PullMode::Create, &mut out)
            .unwrap();
    }
    let taken = resident() - before;
    let reported = store.stats().tables[0].bytes;
    let a_row = |bytes: u64| bytes as f64 / num_rows as f64;
    println!(
        "{num_rows} rows: {:.1} bytes each are reported, the process took {:.1}",
        a_row(reported),
        a_row(taken)
    );
    assert!(reported <= 160 * num_rows, "{} a row", reported / num_rows);
    // A stripe has begun a huge page of rows and one of its index, and not filled them.
    let slack = 16 * 2 * (2 << 20);
    assert!(
        reported <= taken + taken / 50 && taken <= reported + reported / 50 + slack,
        "{reported} bytes are reported, the process took {taken}"
    );
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn reported_bytes_are_those_that_the_process_takes() {
    check(1);
}

#[test]
#[ignore = "takes 1.6 GB; run by `make test-only WHAT=memory`"]
fn reported_bytes_are_those_that_the_process_takes_at_ten_million_rows() {
    check(10);
}
