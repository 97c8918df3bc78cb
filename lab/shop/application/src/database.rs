//! The database: a pool of connections, and for each request how long it waited for one and for its answers.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use deadpool_postgres::{Client, GenericClient, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod};
use tokio_postgres::{Config, NoTls, Row, types::ToSql};

use crate::{fault::Fault, record};

/// Connections at most; more requests than that wait for one.
const CONNECTIONS: usize = 16;
/// How long a request waits for a connection, and a connection for a host that has gone silent.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Values of a statement's parameters.
pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where connections come from.
#[derive(Clone)]
pub(crate) struct Database {
    pool: Pool,
}

impl Database {
    /// Connects once, so that a wrong address is told at the start.
    pub(crate) async fn connect(stated: &str) -> Result<Self, String> {
        let mut config: Config = stated.parse().map_err(|error| format!("{stated:?} names no database: {error}"))?;
        config.connect_timeout(TIMEOUT).tcp_user_timeout(TIMEOUT);
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, NoTls, how))
            .max_size(CONNECTIONS)
            // The connection that was used last knows its statements already.
            .queue_mode(QueueMode::Lifo)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(TIMEOUT))
            .create_timeout(Some(TIMEOUT))
            .build()
            .map_err(|error| error.to_string())?;
        let first = pool.get().await.map_err(|error| format!("no connection to the database {stated:?}: {error}"))?;
        drop(first);
        Ok(Self { pool })
    }

    /// A connection for one request.
    pub(crate) async fn client(&self) -> Result<Client, Fault> {
        let began = Instant::now();
        let got = self.pool.get().await;
        record::waited(began.elapsed());
        Ok(got?)
    }
}

/// All rows that the statement gives.
pub(crate) async fn rows(client: &impl GenericClient, statement: &str, values: Values<'_>) -> Result<Vec<Row>, Fault> {
    asked(async { client.query(&client.prepare_cached(statement).await?, values).await }).await
}

/// The first row that the statement gives, if there is one.
pub(crate) async fn maybe(client: &impl GenericClient, statement: &str, values: Values<'_>) -> Result<Option<Row>, Fault> {
    Ok(rows(client, statement, values).await?.into_iter().next())
}

/// The first row that the statement gives; without one, the fault that the thing of this name is missing.
pub(crate) async fn row(
    client: &impl GenericClient,
    statement: &str,
    values: Values<'_>,
    what: &'static str,
) -> Result<Row, Fault> {
    maybe(client, statement, values).await?.ok_or(Fault::Missing(what))
}

/// Changes something; returns how many rows.
pub(crate) async fn change(client: &impl GenericClient, statement: &str, values: Values<'_>) -> Result<u64, Fault> {
    asked(async { client.execute(&client.prepare_cached(statement).await?, values).await }).await
}

/// Begins or ends a transaction, which is a round trip as any other.
pub(crate) async fn asked<T>(question: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
    let began = Instant::now();
    let answer = question.await;
    record::asked(began.elapsed());
    Ok(answer?)
}
