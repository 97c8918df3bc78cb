//! A moment as text: date and time of day in UTC (RFC 3339, with a space).

/// Milliseconds of a day.
const DAY: u64 = 24 * 60 * 60 * 1000;

/// The moment of so many `seconds` since 1970, with milliseconds.
pub fn moment(seconds: f64) -> String {
    let milliseconds = (seconds * 1000.0) as u64;
    let (year, month, day) = date(milliseconds / DAY);
    let rest = milliseconds % DAY;
    let (second, millisecond) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}")
}

/// As [`moment`], in whole seconds.
pub fn whole_second(seconds: f64) -> String {
    let mut text = moment(seconds);
    text.truncate(text.len() - ".000".len());
    text
}

/// Year, month and day, by the days since 1970, in the Gregorian calendar. Years begin in March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    /// Days of four hundred years, and those from March of year 0 to 1970.
    const ERA: u64 = 146_097;
    const BEFORE: u64 = 719_468;
    let days = days + BEFORE;
    let day_of_era = days % ERA;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * (days / ERA) + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date --utc --date=@SECONDS` tells.
    #[test]
    fn moments_are_those_of_date() {
        for (seconds, text) in [
            (0.0, "1970-01-01 00:00:00.000"),
            (86_399.062_5, "1970-01-01 23:59:59.062"),
            (951_782_400.0, "2000-02-29 00:00:00.000"),
            (1_709_251_200.0, "2024-03-01 00:00:00.000"),
            (1_796_169_600.5, "2026-12-02 00:00:00.500"),
            (4_107_542_400.0, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(moment(seconds), text);
        }
        assert_eq!(whole_second(86_399.9), "1970-01-01 23:59:59");
    }
}
