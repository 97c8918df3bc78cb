//! Pages from JSON Schema: the network's file, and the control socket.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{prose, table};

/// A file that shows most kinds of ports and keys.
const EXAMPLE: &str = include_str!("example.toml");

/// The keys of a network's file.
pub fn configuration(schema: &Value) -> String {
    let mut page = String::from(
        "# The network's file\n\nA network is described by a TOML file. `memlane check FILE` reports all mistakes with their lines; \
         `memlane schema` prints the schema that this page is generated from, for editors. The same keys are taken by `memlane attach`, \
         `memlane set` and the [control socket](api.md).\n\nRates, times, sizes and shares are written with a unit, or as a number in the unit of their key: `loss = \"1%\"` or \
         `0.01`, `transmit = \"1Gbit\"` or `{ rate = \"1Gbit\" }`, `stall-timeout-ms = 1500` or `\"1.5s\"`.\n\n## Example\n\n",
    );
    write!(page, "```toml\n{EXAMPLE}```\n\n## At the top of the file\n\n").unwrap();
    page += &keys(schema);
    page + &definitions(&schema["$defs"])
}

/// The routes of the control socket, and what is sent over it.
pub fn api(document: &Value) -> String {
    let mut page = format!(
        "# The control socket\n\n{} `memlane schema --api` prints the OpenAPI document that this page is generated from.\n\n",
        text(&document["info"]["description"])
    );
    for (path, operations) in members(&document["paths"]) {
        for (method, operation) in members(operations) {
            write!(page, "## {} {path}\n\n{}\n\n", method.to_uppercase(), text(&operation["summary"])).unwrap();
            page += &exchange(operation);
        }
    }
    page + &definitions(&document["components"]["schemas"])
}

/// Request and response of a route.
fn exchange(operation: &Value) -> String {
    let content = |part: &Value| value(&part["content"]["application/json"]["schema"]);
    let mut rows = Vec::new();
    if operation["requestBody"].is_object() {
        rows.push(vec!["request".into(), content(&operation["requestBody"]), String::new()]);
    }
    for (status, answer) in members(&operation["responses"]) {
        rows.push(vec![status.clone(), content(answer), text(&answer["description"]).into()]);
    }
    table(&["status", "body", "meaning"], &rows)
}

/// A chapter for each type that has a name.
fn definitions(types: &Value) -> String {
    members(types)
        .map(|(name, schema)| format!("## {name}\n\n{}\n\n{}", prose(text(&schema["description"])), body(schema)))
        .collect()
}

fn body(schema: &Value) -> String {
    let alternatives = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array());
    match alternatives {
        _ if schema["properties"].is_object() => keys(schema) + &examples(schema),
        Some(several) => {
            let rows: Vec<_> = several.iter().map(|one| vec![value(one), prose(text(&one["description"]))]).collect();
            table(&["value", "meaning"], &rows)
        }
        None => format!("{}\n\n", value(schema)),
    }
}

fn examples(schema: &Value) -> String {
    let examples: Vec<_> = schema["examples"].as_array().into_iter().flatten().map(|example| format!("`{example}`")).collect();
    if examples.is_empty() { String::new() } else { format!("For example {}.\n\n", examples.join(", ")) }
}

/// A table of the keys of an object.
fn keys(schema: &Value) -> String {
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    let row = |(name, key): (&String, &Value)| {
        let default = match &key["default"] {
            _ if required.contains(&name.as_str()) => "; required".into(),
            Value::Null => String::new(),
            Value::Object(empty) if empty.is_empty() => String::new(),
            Value::Array(empty) if empty.is_empty() => String::new(),
            default => format!("; default `{default}`"),
        };
        vec![format!("`{name}`"), value(key) + &default, prose(text(&key["description"]))]
    };
    table(&["key", "value", "meaning"], &members(&schema["properties"]).map(row).collect::<Vec<_>>())
}

/// Permitted values of a key.
fn value(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(only) = schema.get("const") {
        return format!("`{only}`");
    }
    if let Some(several) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        let known: Vec<_> = several.iter().map(value).filter(|text| !text.is_empty()).collect();
        return known.join(" or ");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).filter(|&kind| kind != "null").collect(),
        Value::String(kind) if kind != "null" => vec![kind.as_str()],
        _ => Vec::new(),
    };
    kinds.into_iter().map(|kind| described(kind, schema)).collect::<Vec<_>>().join(" or ")
}

fn described(kind: &str, schema: &Value) -> String {
    match kind {
        "array" => format!("list of {}", value(&schema["items"])),
        "integer" | "number" => format!("{kind}{}", range(schema)),
        "string" => match schema["format"].as_str() {
            Some(format) => format!("text ({format})"),
            None => "text".into(),
        },
        "object" => "table".into(),
        "boolean" => "`true` or `false`".into(),
        other => other.into(),
    }
}

fn range(schema: &Value) -> String {
    match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => String::new(),
        (least, Value::Null) => format!(", at least {least}"),
        (Value::Null, most) => format!(", at most {most}"),
        (least, most) => format!(", {least} to {most}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().map(Map::iter).into_iter().flatten()
}
