//! A client that costs little: one connection, one request after the other.

use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A sandbox, as its creation answers.
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) token: String,
}

/// A connection to the server.
pub(crate) struct Client {
    sender: SendRequest<Body>,
    key: String,
}

impl Client {
    pub(crate) async fn connect(address: &str, key: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, key: key.to_owned() }
    }

    async fn send(&mut self, request: Request<Body>) -> (u16, Bytes) {
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }

    pub(crate) async fn get(&mut self, path: &str) -> u16 {
        self.send(Request::get(path).header("host", "k").body(Body::empty()).unwrap()).await.0
    }

    pub(crate) async fn create(&mut self) -> Made {
        let request = Request::post("/v2/sandboxes").header("host", "k").header("x-api-key", &self.key);
        let body = Body::from(r#"{"templateID":"base","timeout":3600}"#);
        let (status, body) =
            self.send(request.header("content-type", "application/json").body(body).unwrap()).await;
        assert_eq!(status, 201, "{body:?}");
        let made: Value = serde_json::from_slice(&body).unwrap();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        Made { id: text("sandboxID"), token: text("envdAccessToken") }
    }

    pub(crate) async fn kill(&mut self, made: &Made) {
        let request = Request::delete(format!("/sandboxes/{}", made.id)).header("host", "k");
        let (status, _) =
            self.send(request.header("x-api-key", &self.key).body(Body::empty()).unwrap()).await;
        assert_eq!(status, 204);
    }

    fn of_sandbox(made: &Made, method: &str, path: &str) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header("host", "k");
        request.header("x-access-token", &made.token).header("e2b-sandbox-id", &made.id)
    }

    pub(crate) async fn health(&mut self, made: &Made) {
        let request = Self::of_sandbox(made, "GET", "/health").body(Body::empty()).unwrap();
        assert_eq!(self.send(request).await.0, 204);
    }

    /// A request for a command by bash, as E2B's clients send it.
    pub(crate) fn start(made: &Made, command: &str) -> Request<Body> {
        Self::start_words(made, &["/bin/bash", "-l", "-c", command])
    }

    fn start_words(made: &Made, words: &[&str]) -> Request<Body> {
        let process = serde_json::json!({ "cmd": words[0], "args": words[1..] });
        let json = serde_json::json!({ "process": process, "stdin": false }).to_string();
        let mut frame = vec![0];
        frame.extend(u32::try_from(json.len()).unwrap().to_be_bytes());
        frame.extend(json.into_bytes());
        let request = Self::of_sandbox(made, "POST", "/process.Process/Start");
        let request = request.header("content-type", "application/connect+json");
        request.header("connect-timeout-ms", "600000").body(Body::from(frame)).unwrap()
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&mut self, made: &Made, command: &str) {
        let (status, body) = self.send(Self::start(made, command)).await;
        assert!(status == 200 && body.ends_with(b"{}"), "{status} {body:?}");
    }

    /// Runs a command in a sandbox of its own.
    pub(crate) async fn run_once(&mut self, argv: &[&str]) {
        let body = serde_json::json!({ "argv": argv }).to_string();
        let request = Request::post("/v1/run").header("host", "k").header("x-api-key", &self.key);
        let (status, body) = self.send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(status, 200, "{body:?}");
    }

    /// Starts a command, and returns its stream after the first event.
    pub(crate) async fn stream(&mut self, made: &Made, command: &str) -> hyper::body::Incoming {
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(Self::start(made, command)).await.unwrap();
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        body
    }

    /// Runs a command, and returns when its first output is there.
    pub(crate) async fn first_output(&mut self, made: &Made, words: &[&str]) -> hyper::body::Incoming {
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(Self::start_words(made, words)).await.unwrap();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.unwrap();
            let is_output = |data: &Bytes| data.windows(8).any(|part| part == b"\"stdout\"");
            if frame.data_ref().is_some_and(is_output) {
                return body;
            }
        }
        panic!("{words:?} wrote nothing");
    }

    /// Another stream of a command that runs, after its first event.
    pub(crate) async fn attach(&mut self, made: &Made, pid: u32) -> hyper::body::Incoming {
        let json = format!(r#"{{"process":{{"pid":{pid}}}}}"#);
        let mut frame = vec![0];
        frame.extend(u32::try_from(json.len()).unwrap().to_be_bytes());
        frame.extend(json.into_bytes());
        let request = Self::of_sandbox(made, "POST", "/process.Process/Connect");
        let request =
            request.header("content-type", "application/connect+json").body(Body::from(frame)).unwrap();
        self.sender.ready().await.unwrap();
        let mut body = self.sender.send_request(request).await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        body
    }

    pub(crate) async fn upload(&mut self, made: &Made, body: Body) {
        let request = Self::of_sandbox(made, "POST", "/files?path=big");
        let request = request.header("content-type", "application/octet-stream").body(body).unwrap();
        assert_eq!(self.send(request).await.0, 200);
    }

    /// Returns how many bytes came.
    pub(crate) async fn download(&mut self, made: &Made) -> usize {
        let request = Self::of_sandbox(made, "GET", "/files?path=big").body(Body::empty()).unwrap();
        self.sender.ready().await.unwrap();
        let mut body = self.sender.send_request(request).await.unwrap().into_body();
        let mut sum = 0;
        while let Some(frame) = body.frame().await {
            sum += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        sum
    }
}
