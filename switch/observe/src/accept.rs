//! Header fields by which a client names the forms that it accepts (RFC 9110, section 12.5): `Accept` and `Accept-Encoding`.

/// A list of alternatives with weights.
#[derive(Debug)]
pub struct Accept<'h>(Vec<Alternative<'h>>);

/// A media range or a content coding, and its weight in thousandths; 0 means *not acceptable*.
#[derive(Debug)]
struct Alternative<'h> {
    name: &'h str,
    /// The media range's parameter `version`. Others, as `charset` and `escaping`, distinguish nothing that is served here.
    version: Option<&'h str>,
    weight: u16,
}

/// How well a representation is accepted: better ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    /// The weight (`q`), in thousandths; 0 is *not acceptable*.
    pub weight: u16,
    /// Whether the client names it, or at least its type, instead of accepting anything.
    pub is_named: bool,
}

impl<'h> Accept<'h> {
    /// Parses the value of a header field. Alternatives with a weight that is none are left out.
    pub fn parse(value: &'h str) -> Self {
        Self(value.split(',').filter_map(Alternative::parse).collect())
    }

    /// The preference for the media type `kind` of `version`, by the most specific range that matches it.
    pub fn media_type(&self, kind: &str, version: Option<&str>) -> Preference {
        let matching = |range: &Alternative<'_>| Some((range.specificity(kind, version)?, range.weight));
        // Of two that are equally specific, the better one.
        let best = self.0.iter().filter_map(matching).max();
        best.map_or(Preference::default(), |(specificity, weight)| Preference { weight, is_named: specificity > 0 })
    }

    /// Whether the content coding `name` is acceptable, and not less than none.
    pub fn prefers_coding(&self, name: &str) -> bool {
        let of = |name: &str| self.0.iter().find(|one| one.name.eq_ignore_ascii_case(name)).map(|one| one.weight);
        let coded = of(name).or_else(|| of("*")).unwrap_or(0);
        // Without a weight of its own, `identity` is acceptable, and less than a coding that is named.
        coded > 0 && of("identity").is_none_or(|plain| coded >= plain)
    }
}

impl<'h> Alternative<'h> {
    fn parse(text: &'h str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let mut parsed = Self { name: parts.next()?, version: None, weight: 1000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "q" | "Q" => parsed.weight = weight(value)?,
                _ if name.eq_ignore_ascii_case("version") => parsed.version = Some(value.trim_matches('"')),
                _ => {}
            }
        }
        (!parsed.name.is_empty()).then_some(parsed)
    }

    /// How exactly the range names a media type: 0 for any; `None` if it does not match.
    fn specificity(&self, kind: &str, version: Option<&str>) -> Option<u8> {
        let (main, _) = kind.split_once('/')?;
        if self.name == "*/*" {
            return Some(0);
        }
        if self.name.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(main)) {
            return Some(1);
        }
        match self.version {
            _ if !self.name.eq_ignore_ascii_case(kind) => None,
            None => Some(2),
            own => (own == version).then_some(3),
        }
    }
}

/// A weight in thousandths: `0`, `0.5`, `1.000`, with three decimal places at most.
fn weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = decimals.len() <= 3 && decimals.bytes().all(|digit| digit.is_ascii_digit());
    let thousandths: u16 = format!("{decimals:0<3}").parse().ok().filter(|_| is_number)?;
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9110, section 12.5.1.
    #[test]
    fn the_most_specific_range_decides() {
        let accept =
            Accept::parse("text/*;q=0.3, text/plain;q=0.7, text/plain;version=0.0.4, text/plain;version=0.4;q=0.4, */*;q=0.5");
        let weight = |kind, version| accept.media_type(kind, version).weight;
        assert_eq!(weight("text/plain", Some("0.0.4")), 1000);
        assert_eq!(weight("text/plain", None), 700);
        assert_eq!(weight("text/html", None), 300);
        assert_eq!(weight("image/jpeg", None), 500);
        assert_eq!(weight("text/plain", Some("0.4")), 400);
    }

    #[test]
    fn weights_are_those_of_the_grammar() {
        assert_eq!(["0", "0.", "0.001", "0.5", "1", "1.000"].map(weight), [0, 0, 1, 500, 1000, 1000].map(Some));
        for wrong in ["", "2", "1.001", "0.0001", "-1", "nan", "0.a", "0x1"] {
            assert_eq!(weight(wrong), None, "{wrong}");
        }
        assert_eq!(Accept::parse("text/plain;q=high").media_type("text/plain", None), Preference::default());
    }

    #[test]
    fn a_coding_with_the_weight_zero_is_not_acceptable() {
        let gzip = |header: &str| Accept::parse(header).prefers_coding("gzip");
        for header in ["gzip", "gzip;q=0.5", "deflate, GZIP;q=1.0", "*", "gzip, identity;q=0.5", "br;q=1, *;q=0.1"] {
            assert!(gzip(header), "{header}");
        }
        for header in ["", "gzip;q=0", "gzip; q=0.000", "gzip;q=0, *", "identity", "*;q=0", "gzip;q=0.2, identity"] {
            assert!(!gzip(header), "{header}");
        }
    }
}
