//! Lines of the file for the keys of a network's ports, as far as file and network agree.

use super::lines::FileLines;
use super::{Config, PortConfig};

impl Config {
    /// The line of the file that states `key` of `port` as the port has it; where the file does not state it, the first line of the port's
    /// table. None if the port has the key from elsewhere.
    pub fn line_of(&self, port: &PortConfig, key: &str) -> Option<usize> {
        let lines = self.lines.ports.get(&port.name).filter(|_| !self.lines.is_empty())?;
        let is_so = self.port(&port.name).is_some_and(|stated| says_the_same(stated, port, key));
        is_so.then(|| lines.keys.get(key).copied().unwrap_or(lines.table))
    }

    /// Lines of the keys, without those of which `other` says something else.
    pub fn lines_as_in(&self, other: &Self) -> FileLines {
        let (mut lines, own, others) = (self.lines.clone(), self.by_name(), other.by_name());
        lines.ports.retain(|name, lines| {
            let both = own.get(name.as_str()).zip(others.get(name.as_str()));
            lines.keys.retain(|key, _| both.is_some_and(|(own, other)| says_the_same(own, other, key)));
            both.is_some()
        });
        lines
    }
}

fn says_the_same(one: &PortConfig, other: &PortConfig, key: &str) -> bool {
    one.stated().get(key) == other.stated().get(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[port]]\nname = \"a\"\nnull = true\n\nanti-spoof = \"all\"\nmac = \"02:00:00:00:00:01\" # é\naddresses = [\n  \"10.0.0.1\",\n]\n[[port]]\nname = \"b\"\nnull = true\n";

    fn read(text: &str) -> Config {
        let mut config = Config::parse(text, "net").unwrap();
        config.lines.file = "/net.toml".into();
        config
    }

    #[test]
    fn keys_have_the_lines_in_which_they_stand() {
        let config = read(TEXT);
        let line = |port: &str, key: &str| config.line_of(config.port(port).unwrap(), key);
        assert_eq!(["anti-spoof", "mac", "addresses"].map(|key| line("a", key)), [Some(5), Some(6), Some(7)]);
        assert_eq!((line("a", "allowed"), line("b", "anti-spoof")), (Some(1), Some(10)), "where they would be added");
    }

    #[test]
    fn a_key_that_is_not_the_files_has_no_line() {
        let config = read(TEXT);
        let other = read(&TEXT.replace("\"all\"", "\"off\""));
        let changed = other.port("a").unwrap();
        assert_eq!((config.line_of(changed, "anti-spoof"), config.line_of(changed, "mac")), (None, Some(6)));
        assert_eq!(config.line_of(&PortConfig { name: "c".into(), ..changed.clone() }, "mac"), None, "a port that was attached");
        let lines = other.lines_as_in(&config);
        assert!(!lines.ports["a"].keys.contains_key("anti-spoof") && lines.ports["a"].keys["mac"] == 6);
        assert_eq!(Config::parse(TEXT, "net").unwrap().line_of(config.port("a").unwrap(), "mac"), None, "no file");
    }
}
