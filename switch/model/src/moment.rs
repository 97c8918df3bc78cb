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

/// Like [`moment`], in whole seconds.
pub fn whole_second(seconds: f64) -> String {
    let mut text = moment(seconds);
    text.truncate(text.len() - ".000".len());
    text
}

/// The moments that `text` names: the first one in nanoseconds since 1970, and how long they last, also in nanoseconds. It is a moment in UTC as
/// [`moment`] writes it, which may end behind the minute or the second, or a time of day alone, of the day of the moment `near`.
pub fn parse(text: &str, near: u64) -> Option<(u64, u64)> {
    const NANOSECONDS: u64 = 1_000_000;
    let (day, time) = match text.trim().split_once([' ', 'T']) {
        Some((day, time)) => (days(day)?, time),
        None => (near / (DAY * NANOSECONDS), text.trim()),
    };
    let mut parts = time.trim_end_matches('Z').split(':');
    let mut number = |most: u64| parts.next()?.parse::<u64>().ok().filter(|number| *number <= most);
    let (hour, minute) = (number(23)?, number(59)?);
    let (seconds, lasting) = match parts.next() {
        None => (0, 60_000),
        Some(second) => {
            let (whole, part) = second.split_once('.').unwrap_or((second, ""));
            let whole = whole.parse::<u64>().ok().filter(|second| *second <= 59)?;
            let digits = part.len() <= 3 && part.bytes().all(|digit| digit.is_ascii_digit());
            let part = format!("{part:0<3}").parse::<u64>().ok().filter(|_| digits)?;
            (whole * 1000 + part, if second.contains('.') { 1 } else { 1000 })
        }
    };
    if parts.next().is_some() {
        return None;
    }
    let milliseconds = day.checked_mul(DAY)? + (hour * 60 + minute) * 60_000 + seconds;
    Some((milliseconds.checked_mul(NANOSECONDS)?, lasting * NANOSECONDS))
}

/// The days from 1970 to the date of `text`, as 2026-11-28.
fn days(text: &str) -> Option<u64> {
    let mut parts = text.split('-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let wanted = (number()?, number()?, number()?);
    if parts.next().is_some() || !(1970..10_000).contains(&wanted.0) {
        return None;
    }
    // Each year has 366 days at most, and each month 31.
    let guess = (wanted.0 - 1970) * 365;
    (guess..guess + 2600).find(|&days| date(days) == wanted)
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

    /// The moments are those that `date --utc --date=@SECONDS` tells.
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
        for seconds in [0.0, 951_782_400.0, 1_796_169_600.5, 4_107_542_399.999] {
            let (nanoseconds, lasting) = parse(&moment(seconds), 0).unwrap();
            assert!((nanoseconds as f64 / 1e9 - seconds).abs() < 0.001_1 && lasting == 1_000_000, "{seconds}");
        }
        let day = 20_000 * DAY * 1_000_000;
        assert_eq!(parse("03:12", day + 5), Some((day + (3 * 60 + 12) * 60_000_000_000, 60_000_000_000)));
        assert_eq!(parse("1970-01-02 00:00:01", 0), Some((86_401_000_000_000, 1_000_000_000)));
        for wrong in
            ["", "3", "24:00", "1:60", "1:1:60", "1:1:1:1", "2026-13-01 1:1", "2026-02-30 1:1", "1:1:1.1234", "-1:1", "1:1:1.-1"]
        {
            assert_eq!(parse(wrong, 0), None, "{wrong}");
        }
        assert_eq!(whole_second(86_399.9), "1970-01-01 23:59:59");
    }
}
