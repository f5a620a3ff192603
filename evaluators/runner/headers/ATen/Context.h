// Operators' headers include the full one, and use nothing of it. A source that does is built with the full headers.
#pragma once
#pragma GCC system_header
