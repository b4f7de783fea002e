// Package clients owns the tests with clients on Node.js: the MCP clients that others wrote, the TypeScript SDKs and the Inspector, and our own TypeScript
// client, as it is published. What they need is pinned in package.json.
//
// They run against a server in this process, and against a built binary where BERTH_BIN names one. make clients must have installed the packages here;
// without it, and without node, the tests are skipped outside CI.
package clients

// The TypeScript client is generated from the OpenAPI document, so after it: packages are generated in the order of their names.
//go:generate go run ../../clients/typescript/gen -root ../..
