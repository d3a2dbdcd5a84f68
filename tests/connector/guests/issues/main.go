// A connector in Go: it runs a program through `spawn`, with an argument vector that begins with argv[0], as exec(3) and
// os/exec have it.
package main

import (
	"encoding/json"
	"errors"
	"os"
)

//go:wasmimport aileron_host log
func hostLog(level string, message string)

//go:wasmimport aileron_host spawn
func hostSpawn(envelope string) int32

//go:wasmimport aileron_host spawn_op
func hostSpawnOperation(name string, arguments string) int32

//go:wasmimport aileron_host spawn_status
func hostStatus() int32

//go:wasmimport aileron_host spawn_output_size
func hostOutputSize(which int32) int32

//go:wasmimport aileron_host spawn_output_read
func hostOutputRead(which int32, to *byte, length int32) int32

// Envelope has no omitempty, so what is not set is empty or null.
type Envelope struct {
	Program           string            `json:"program"`
	Argv              []string          `json:"argv"`
	Env               map[string]string `json:"env"`
	Cwd               string            `json:"cwd"`
	Stdin             *string           `json:"stdin"`
	CredentialEnvKeys []string          `json:"credential_env_keys"`
	Forwarder         bool              `json:"forwarder"`
}

func output(which int32) string {
	bytes := make([]byte, hostOutputSize(which))
	if len(bytes) > 0 {
		hostOutputRead(which, &bytes[0], int32(len(bytes)))
	}
	return string(bytes)
}

func run(op string, argv []string) (map[string]any, error) {
	var code int32
	switch op {
	case "spawn":
		envelope, err := json.Marshal(Envelope{Program: "gh", Argv: argv})
		if err != nil {
			return nil, err
		}
		code = hostSpawn(string(envelope))
	case "operation":
		code = hostSpawnOperation("version", "")
	default:
		return nil, errors.New("unknown operation " + op)
	}
	if code != 0 {
		return map[string]any{"code": code}, nil
	}
	hostLog("notice", "it ran")
	return map[string]any{"code": code, "status": hostStatus(), "stdout": output(0), "stderr": output(1)}, nil
}

func main() {
	var call struct {
		Op   string `json:"op"`
		Args struct {
			Argv []string `json:"argv"`
		} `json:"args"`
	}
	answer := map[string]any{}
	if err := json.NewDecoder(os.Stdin).Decode(&call); err != nil {
		answer["error"] = map[string]string{"class": "bad_input", "message": err.Error()}
	} else if output, err := run(call.Op, call.Args.Argv); err != nil {
		answer["error"] = map[string]string{"class": "failed", "message": err.Error()}
	} else {
		answer["output"] = output
	}
	json.NewEncoder(os.Stdout).Encode(answer)
}
