//! Rust's log lines go to stderr, beside Python's: server threads never take the GIL.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

static STDERR: Stderr = Stderr;

/// Begins logging; a second extension in the process that did so before is left alone.
pub(crate) fn init() {
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let level = record.level();
        let (seconds, millis) = (now.as_secs(), now.subsec_millis());
        let line = format!(
            "{}.{millis:03}Z {level} {}: {}\n",
            clock(seconds),
            record.target(),
            record.args()
        );
        // One write, so that lines of several threads do not mix. A closed stderr leaves no place
        // to report the error.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Date and time of day in UTC; the date by the algorithm `civil_from_days` of Howard Hinnant.
fn clock(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = month_from_march % 12 + if month_from_march < 10 { 3 } else { 0 };
    let month = if month_from_march >= 10 {
        month_from_march - 9
    } else {
        month
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_knows_leap_years() {
        assert_eq!(super::clock(0), "1970-01-01T00:00:00");
        assert_eq!(super::clock(951_782_399), "2000-02-28T23:59:59");
        assert_eq!(super::clock(951_782_400), "2000-02-29T00:00:00");
        assert_eq!(super::clock(1_767_225_599), "2025-12-31T23:59:59");
    }
}
