//! A value as TOML or JSON has it, with its place in the text.

use std::borrow::Cow;

use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written<'v> {
    /// Position in the text; 0 where there is none.
    pub at: usize,
    /// Type and value.
    pub form: Form<'v>,
}

/// See [`Written`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form<'v> {
    Text(Cow<'v, str>),
    /// A number with more digits than any key allows is replaced by the largest.
    Whole(i128),
    Number(f64),
    Truth(bool),
    List(Vec<Written<'v>>),
    /// Keys with their places.
    Table(Vec<(Cow<'v, str>, usize, Written<'v>)>),
    Date,
    /// JSON's null.
    Nothing,
}

impl<'v> From<&'v Spanned<DeValue<'_>>> for Written<'v> {
    fn from(value: &'v Spanned<DeValue<'_>>) -> Self {
        let form = match value.get_ref() {
            DeValue::String(text) => Form::Text(Cow::Borrowed(text)),
            DeValue::Integer(number) => Form::Whole(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX)),
            DeValue::Float(number) => Form::Number(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(truth) => Form::Truth(*truth),
            DeValue::Datetime(_) => Form::Date,
            DeValue::Array(list) => Form::List(list.iter().map(Self::from).collect()),
            DeValue::Table(table) => Form::Table(
                table.iter().map(|(key, value)| (Cow::Borrowed(key.get_ref().as_ref()), key.span().start, value.into())).collect(),
            ),
        };
        Self { at: value.span().start, form }
    }
}

impl<'v> From<&'v Value> for Written<'v> {
    fn from(value: &'v Value) -> Self {
        let form = match value {
            Value::Null => Form::Nothing,
            Value::Bool(truth) => Form::Truth(*truth),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => Form::Whole(number.into()),
                (_, Some(number)) => Form::Whole(number.into()),
                _ => Form::Number(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Form::Text(text.into()),
            Value::Array(list) => Form::List(list.iter().map(Self::from).collect()),
            Value::Object(map) => Form::Table(map.iter().map(|(key, value)| (key.into(), 0, value.into())).collect()),
        };
        Self { at: 0, form }
    }
}
