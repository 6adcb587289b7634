//! Which call of KServe's a path is. Pure; owns the paths, which are Triton's.

use axum::body::Body;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;

use crate::error::RestError;

/// The methods that KServe's HTTP API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

/// A model, and which of its versions; an empty version leaves the choice to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRef {
    pub name: String,
    pub version: String,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Live,
    Ready,
    ServerMetadata,
    ModelReady(ModelRef),
    ModelMetadata(ModelRef),
    ModelConfig(ModelRef),
    /// Of all models, where the name is empty.
    Statistics(ModelRef),
    Infer(ModelRef),
    Generate(ModelRef),
    GenerateStream(ModelRef),
    RepositoryIndex,
    Load(String),
    Unload(String),
    /// Of the model with this name, or of all where it is empty. Read by GET, changed by POST.
    TraceSettings(String),
    LogSettings,
    SharedMemory(MemoryRoute),
}

/// A call about shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRoute {
    pub kind: MemoryKind,
    pub call: MemoryCall,
    /// The region; empty for all.
    pub region: String,
}

/// Where shared memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    System,
    Cuda,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCall {
    Status,
    Register,
    Unregister,
}

/// Why a path is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    NotFound,
    WrongMethod(Method),
}

impl NoRoute {
    /// The response that says so.
    pub fn response(self) -> Response<Body> {
        let (status, text) = match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "Not Found"),
            Self::WrongMethod(_) => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
        };
        let mut response = RestError::new(status, text).response();
        if let Self::WrongMethod(right) = self {
            let allowed = match right {
                Method::Get => HeaderValue::from_static("GET"),
                Method::Post => HeaderValue::from_static("POST"),
            };
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        response
    }
}

impl Route {
    /// The call of a request with this method and path.
    ///
    /// # Errors
    /// [`NoRoute`].
    pub fn of(method: &http::Method, path: &str) -> Result<Self, NoRoute> {
        match *method {
            http::Method::GET => Self::parse(Method::Get, path),
            http::Method::POST => Self::parse(Method::Post, path),
            _ => Self::parse(Method::Get, path).and(Err(NoRoute::WrongMethod(Method::Get))),
        }
    }

    /// The call of a `path` below `/v2`, as it is in the request's line.
    ///
    /// # Errors
    /// [`NoRoute`].
    pub fn parse(method: Method, path: &str) -> Result<Self, NoRoute> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (expected, route) = Self::find(&parts, method).ok_or(NoRoute::NotFound)?;
        if expected == method {
            Ok(route)
        } else {
            Err(NoRoute::WrongMethod(expected))
        }
    }

    /// A call and its method; `given` where it has both.
    fn find(parts: &[&str], given: Method) -> Option<(Method, Self)> {
        use Method::{Get, Post};
        let found = match parts {
            ["v2", "trace", "setting"] => (given, Self::TraceSettings(String::new())),
            ["v2", "models", name, "trace", "setting"] => {
                (given, Self::TraceSettings(decoded(name)?))
            }
            ["v2", "logging"] => (given, Self::LogSettings),
            ["v2"] | ["v2", ""] => (Get, Self::ServerMetadata),
            ["v2", "health", "live"] => (Get, Self::Live),
            ["v2", "health", "ready"] => (Get, Self::Ready),
            ["v2", "models", "stats"] => (Get, Self::Statistics(ModelRef::default())),
            ["v2", "models", name, "versions", version, rest @ ..] => {
                return Self::of_model(model(name, version)?, rest);
            }
            ["v2", "models", name, rest @ ..] => return Self::of_model(model(name, "")?, rest),
            // Triton's path for one of several repositories; which one a model is from makes no difference here.
            ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => {
                (Post, Self::RepositoryIndex)
            }
            ["v2", "repository", "models", name, action]
            | ["v2", "repository", _, "models", name, action] => {
                let name = decoded(name)?;
                match *action {
                    "load" => (Post, Self::Load(name)),
                    "unload" => (Post, Self::Unload(name)),
                    _ => return None,
                }
            }
            ["v2", "systemsharedmemory", rest @ ..] => {
                return Self::of_memory(MemoryKind::System, rest);
            }
            ["v2", "cudasharedmemory", rest @ ..] => {
                return Self::of_memory(MemoryKind::Cuda, rest);
            }
            _ => return None,
        };
        Some(found)
    }

    fn of_memory(kind: MemoryKind, rest: &[&str]) -> Option<(Method, Self)> {
        let (region, call) = match *rest {
            ["region", name, call] => (decoded(name)?, call),
            // One registers a region, not all of them.
            [call] if call != "register" => (String::new(), call),
            _ => return None,
        };
        let (method, call) = match call {
            "status" => (Method::Get, MemoryCall::Status),
            "register" => (Method::Post, MemoryCall::Register),
            "unregister" => (Method::Post, MemoryCall::Unregister),
            _ => return None,
        };
        let route = MemoryRoute { kind, call, region };
        Some((method, Self::SharedMemory(route)))
    }

    fn of_model(model: ModelRef, rest: &[&str]) -> Option<(Method, Self)> {
        use Method::{Get, Post};
        Some(match rest {
            [] => (Get, Self::ModelMetadata(model)),
            ["ready"] => (Get, Self::ModelReady(model)),
            ["config"] => (Get, Self::ModelConfig(model)),
            ["stats"] => (Get, Self::Statistics(model)),
            ["infer"] => (Post, Self::Infer(model)),
            ["generate"] => (Post, Self::Generate(model)),
            ["generate_stream"] => (Post, Self::GenerateStream(model)),
            _ => return None,
        })
    }

    /// The route's template, for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Live | Self::Ready => "/v2/health",
            Self::ServerMetadata => "/v2",
            Self::ModelReady(_) => "/v2/models/{model}/ready",
            Self::ModelMetadata(_) => "/v2/models/{model}",
            Self::ModelConfig(_) => "/v2/models/{model}/config",
            Self::Statistics(_) => "/v2/models/{model}/stats",
            Self::Infer(_) => "/v2/models/{model}/infer",
            Self::Generate(_) => "/v2/models/{model}/generate",
            Self::GenerateStream(_) => "/v2/models/{model}/generate_stream",
            Self::RepositoryIndex => "/v2/repository/index",
            Self::Load(_) | Self::Unload(_) => "/v2/repository/models/{model}",
            Self::TraceSettings(name) if name.is_empty() => "/v2/trace/setting",
            Self::TraceSettings(_) => "/v2/models/{model}/trace/setting",
            Self::LogSettings => "/v2/logging",
            Self::SharedMemory(route) => match route.kind {
                MemoryKind::System => "/v2/systemsharedmemory",
                MemoryKind::Cuda => "/v2/cudasharedmemory",
            },
        }
    }

    /// Whether the call makes a model work.
    pub fn is_inference(&self) -> bool {
        matches!(
            self,
            Self::Infer(_) | Self::Generate(_) | Self::GenerateStream(_)
        )
    }
}

fn model(name: &str, version: &str) -> Option<ModelRef> {
    let is_number = version.bytes().all(|byte| byte.is_ascii_digit());
    Some(ModelRef {
        name: decoded(name)?,
        version: is_number.then(|| version.to_owned())?,
    })
}

/// A name as clients write it in a path: `%20` and the like are decoded.
fn decoded(name: &str) -> Option<String> {
    let name = percent_decode_str(name).decode_utf8().ok()?;
    (!name.is_empty()).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_tritons() {
        use Method::{Get, Post};
        let model = |name: &str, version: &str| ModelRef {
            name: name.to_owned(),
            version: version.to_owned(),
        };
        let memory = |kind, call, region: &str| {
            let region = region.to_owned();
            Ok(Route::SharedMemory(MemoryRoute { kind, call, region }))
        };
        let system = |call, region| memory(MemoryKind::System, call, region);
        for (method, path, expected) in [
            (
                Get,
                "/v2/systemsharedmemory/status",
                system(MemoryCall::Status, ""),
            ),
            (
                Get,
                "/v2/systemsharedmemory/region/a%2Fb/status",
                system(MemoryCall::Status, "a/b"),
            ),
            (
                Post,
                "/v2/systemsharedmemory/region/r/register",
                system(MemoryCall::Register, "r"),
            ),
            (
                Get,
                "/v2/systemsharedmemory/region/r/register",
                Err(NoRoute::WrongMethod(Post)),
            ),
            (
                Post,
                "/v2/systemsharedmemory/register",
                Err(NoRoute::NotFound),
            ),
            (
                Post,
                "/v2/systemsharedmemory/unregister",
                system(MemoryCall::Unregister, ""),
            ),
            (
                Post,
                "/v2/systemsharedmemory/region/r/unregister",
                system(MemoryCall::Unregister, "r"),
            ),
            (
                Post,
                "/v2/cudasharedmemory/region/r/register",
                memory(MemoryKind::Cuda, MemoryCall::Register, "r"),
            ),
            (Get, "/v2/cudasharedmemory/nothing", Err(NoRoute::NotFound)),
            (Get, "/v2", Ok(Route::ServerMetadata)),
            (Get, "/v2/", Ok(Route::ServerMetadata)),
            (Get, "/v2/health/live", Ok(Route::Live)),
            (Get, "/v2/health/ready", Ok(Route::Ready)),
            (Post, "/v2/health/ready", Err(NoRoute::WrongMethod(Get))),
            (
                Get,
                "/v2/models/m",
                Ok(Route::ModelMetadata(model("m", ""))),
            ),
            (
                Get,
                "/v2/models/a%20b",
                Ok(Route::ModelMetadata(model("a b", ""))),
            ),
            (
                Get,
                "/v2/models/m/versions/1",
                Ok(Route::ModelMetadata(model("m", "1"))),
            ),
            (Get, "/v2/models/m/versions/x", Err(NoRoute::NotFound)),
            (
                Get,
                "/v2/models/m/versions/2/ready",
                Ok(Route::ModelReady(model("m", "2"))),
            ),
            (
                Get,
                "/v2/models/m/config",
                Ok(Route::ModelConfig(model("m", ""))),
            ),
            (
                Get,
                "/v2/models/m/stats",
                Ok(Route::Statistics(model("m", ""))),
            ),
            (
                Get,
                "/v2/models/stats",
                Ok(Route::Statistics(ModelRef::default())),
            ),
            (Post, "/v2/models/m/infer", Ok(Route::Infer(model("m", "")))),
            (Get, "/v2/models/m/infer", Err(NoRoute::WrongMethod(Post))),
            (
                Post,
                "/v2/models/m/generate",
                Ok(Route::Generate(model("m", ""))),
            ),
            (
                Post,
                "/v2/models/m/versions/1/generate_stream",
                Ok(Route::GenerateStream(model("m", "1"))),
            ),
            (Post, "/v2/models/m/other", Err(NoRoute::NotFound)),
            (Post, "/v2/models//infer", Err(NoRoute::NotFound)),
            (Post, "/v2/repository/index", Ok(Route::RepositoryIndex)),
            (
                Post,
                "/v2/repository/models/m/load",
                Ok(Route::Load("m".to_owned())),
            ),
            (
                Post,
                "/v2/repository/models/m/unload",
                Ok(Route::Unload("m".to_owned())),
            ),
            (
                Get,
                "/v2/trace/setting",
                Ok(Route::TraceSettings(String::new())),
            ),
            (
                Post,
                "/v2/models/m/trace/setting",
                Ok(Route::TraceSettings("m".to_owned())),
            ),
            (Get, "/v2/logging", Ok(Route::LogSettings)),
            (Post, "/v2/logging", Ok(Route::LogSettings)),
            (Post, "/v2/nothing", Err(NoRoute::NotFound)),
        ] {
            assert_eq!(Route::parse(method, path), expected, "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_answered_with_the_right_one() {
        for (method, path, status, allowed) in [
            (
                http::Method::DELETE,
                "/v2/models/m/infer",
                405,
                Some("POST"),
            ),
            (http::Method::PUT, "/v2/models/m", 405, Some("GET")),
            (http::Method::GET, "/v2/models/m/infer", 405, Some("POST")),
            (http::Method::DELETE, "/v2/nothing", 404, None),
        ] {
            let response = Route::of(&method, path).unwrap_err().response();
            assert_eq!(response.status(), status, "{method} {path}");
            let header = response.headers().get(header::ALLOW);
            assert_eq!(header.map(|allow| allow.to_str().unwrap()), allowed);
        }
    }
}
