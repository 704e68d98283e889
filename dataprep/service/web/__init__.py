"""Pages and API over the files of outputs and jobs. Holds no state: any number of servers may show the same folders.

`app` puts the application together; `security` stands before all routes, and `sessions` knows who has logged in;
`showing` has the templates; `access`, `pages` and `api` are the routes.
"""
